"""The samples, and a packed set of them for each strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer_cli.cli.main import main as hbpack
from packer_cli.commands.plan import plan_cut
from packer_cli.config import PlanConfig
from packer_cli.config.groups import parse_group
from packer_cli.config.resolve import resolve
from packer_cli.format.constants import PLAN_NAME
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.core.types import Int32Array, Plan
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.shards.plan_file import read_plan
from tests.benchmark.measure import ROOT, BenchmarkError
from tests.benchmark.paper import Mix
from tests.cli_runner import run

TOKENIZER = ROOT / "examples" / "sample" / "tokenizer"
VOCABULARY = 1024
"""Of that tokenizer."""
PADDED = "padded"

OPTIONS: dict[str, Sequence[str]] = {
    "naive": (),
    PADDED: (),
    "longalign-packing": (),
    "longalign-sorted": (),
    "hbp": (),
    "balanced": ("--cost", "profile"),
    "flexsp": (),
    "batchada": (),
    "flexsp:all": (),
    "plain-4d": (),
    "fixed-4d": (),
    "wlb": (),
    "wlb cp=2": (),
    "hydraulis": ("--parallel", "tp=1,cp=1,pp=1"),
}
"""The plans to compare, with their options beside `--strategy`: a strategy's, or its with `--parallel`."""
NEED_PROFILE = {"balanced", "flexsp", "batchada", "flexsp:all", "wlb", "hydraulis"}
NEED_TOKENS = {"flexsp", "batchada", "hydraulis"}
"""Those that plan batches of a number of tokens."""


@dataclass(frozen=True, kw_only=True)
class PlannedSet:
    """A strategy's plan; packed, unless its batches are padded."""

    name: str
    plan: Plan
    folder: Path | None


def draw_lengths(longest: int, tokens: int, seed: int) -> Int32Array:
    """Chats, and documents that hold a third of the tokens: int32[n]."""
    mix = Mix(num_chats=10_000, mean_chat=longest / 20, longest_chat=longest // 4, num_long=600,
              shortest_long=longest // 16, longest_long=longest, is_long_uniform=False)  # fmt: skip
    lengths = mix.lengths(seed=seed)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]


def write_samples(lengths: Int32Array, path: Path, seed: int) -> None:
    """Samples of random tokens, as a Parquet file that `hbpack pack` reads."""
    random = np.random.default_rng(seed)
    ids = random.integers(8, VOCABULARY, int(lengths.sum()), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)}), path)


def make_set(name: str, samples: Path, lengths: Int32Array, groups: str, num_gpus: int, profile: Path) -> PlannedSet:
    """Plan the samples, and pack them beside their file."""
    strategy, _, parallel = name.partition(" ")
    given = [parse_group(group) for group in groups.split(",")]
    if not STRATEGIES[strategy].is_packed:
        config = PlanConfig(groups=groups, gpus=num_gpus, **STRATEGIES[strategy].defaults)
        config = config.model_copy(update={"groups": config.groups[-1:]})
        return PlannedSet(name=name, plan=plan_cut(Samples(lengths=lengths), resolve(config))[0], folder=None)
    folder = samples.parent / name.replace(" ", "-")
    options: list[object] = ["--strategy", strategy, *OPTIONS[name]]
    if parallel:  # In place of SP.
        given = [replace(group, sp_size=1) for group in given]
        options += ["--parallel", parallel]
    if strategy in NEED_PROFILE:
        options += ["--profile", profile]
    if strategy in NEED_TOKENS:  # A full row of the longest group on each of its replicas.
        options += ["--global-tokens", given[-1].full_row * given[-1].num_dp_ranks(num_gpus)]
    used = ",".join(map(str, STRATEGIES[strategy].groups(given)))
    pack(samples, folder, used, num_gpus, options)
    return PlannedSet(name=name, plan=read_plan(folder / PLAN_NAME)[0], folder=folder)


def pack(samples: Path, folder: Path, groups: str, num_gpus: int, options: Sequence[object]) -> None:
    """Pack the samples, as a user would."""
    done = run(hbpack, "pack", samples, "--tokenizer", TOKENIZER, "--groups", groups, "--gpus", num_gpus, *options,
               "--output", folder)  # fmt: skip
    if done.code:
        raise BenchmarkError(done.stderr)


def known_strategies() -> list[str]:
    """The plans of strategies that this version of hbpack has."""
    return [name for name in OPTIONS if name.partition(" ")[0] in STRATEGIES]
