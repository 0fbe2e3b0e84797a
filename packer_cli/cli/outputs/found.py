"""The records of what commands find: `hbpack status`, `verify` and `show`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from packer_cli.cli.outputs.base import Output
from packer_cli.commands.doctor import Check
from packer_cli.format.records import FOR_SCHEMA
from packer_cli.verify.report import Damage


@dataclass(frozen=True, kw_only=True)
class DamageOutput(Damage):
    """Something that is not as it was written."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA


@dataclass(frozen=True, kw_only=True)
class VerifyOutput(Output):
    """`hbpack verify`."""

    sound: bool
    damaged: tuple[DamageOutput, ...]
    repaired: tuple[DamageOutput, ...]
    not_checked: tuple[str, ...]
    checked: dict[str, int]
    """How many of what were found sound."""


@dataclass(frozen=True, kw_only=True)
class RunningTask(Output):
    """A process that writes to the folder."""

    host: str
    pid: int
    task: int | None = None
    """Of a job array, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class ArrayOutput(Output):
    """The tasks of a job array, counted from 0."""

    num_tasks: int
    done: tuple[int, ...]
    running: tuple[RunningTask, ...]
    missing: tuple[int, ...]
    expression: str
    """The ids of the missing tasks, as Slurm's `--array` takes them."""


@dataclass(frozen=True, kw_only=True)
class StageOutput(Output):
    """What is there of one stage."""

    stage: Literal["tokens", "plan", "validation", "shards", "export"]
    state: Literal["complete", "unfinished", "missing"]
    summary: str
    array: ArrayOutput | None = None


@dataclass(frozen=True, kw_only=True)
class StatusOutput(Output):
    """`hbpack status`."""

    complete: bool
    running: RunningTask | None
    stages: tuple[StageOutput, ...]


@dataclass(frozen=True, kw_only=True)
class CheckOutput(Check):
    """What was found of one thing."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA


@dataclass(frozen=True, kw_only=True)
class DoctorOutput(Output):
    """`hbpack doctor`."""

    healthy: bool
    """Whether nothing is broken."""
    checks: tuple[CheckOutput, ...]


@dataclass(frozen=True, kw_only=True)
class Run(Output):
    """Tokens in a row that are all trained on, or all masked."""

    trained: bool
    num_tokens: int
    text: str | None
    """Null without the tokenizer."""
    input_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ShownSampleOutput(Output):
    """A sample of a pack."""

    index: int
    """Its place in the pack."""
    sample_id: int
    source: str | None
    file: str | None
    line: int | None
    """The record that it comes from."""
    begin: int
    """Its first token in the pack."""
    start: int
    """Its first token in the whole sample, which may be cut."""
    num_tokens: int
    num_loss_tokens: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, kw_only=True)
class ShownPackOutput(Output):
    """A pack."""

    pack_id: int
    group: str
    capacity: int
    num_tokens: int
    num_loss_tokens: int
    attention_work: int
    cp_sharding: str | None
    num_samples: int
    rank_tokens: tuple[tuple[int, int], ...] | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class ShowOutput(Output):
    """An element of the list that `hbpack show` prints."""

    place: dict[str, int] | None
    """Epoch, rank, iteration, degrees and places; null where the epoch does not use the pack."""
    pack: ShownPackOutput | None
    """Null for a filler."""
    samples: tuple[ShownSampleOutput, ...]
    step_iterations: tuple[int, ...]
    step_packs: tuple[int | None, ...]
