"""What a report is about: the plan or the lengths at a path, or those that a notebook holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packer_cli.config import PlanConfig
from packer_cli.errors import FormatError, InputError
from packer_cli.format.constants import PLAN_NAME
from packer_cli.plan.core.samples import Samples
from packer_cli.plan.packing.wrap import join
from packer_cli.stages.output import store_of
from packer_cli.stages.planned import Planned, plan_in_memory, read_planned
from packer_cli.stages.planning import samples_of_store
from packer_cli.stages.samples import require_samples
from packer_cli.tokens.index import INDEX_NAME
from packer_cli.tokens.store import TokenStore


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a report is about."""

    name: str
    """As the user gave it; the heading of the page."""
    planned: Planned | None
    """None: only lengths are known."""
    samples: Samples
    sources: tuple[str, ...] = ()
    """Names of the inputs; empty where they are not known."""


def subject_at(path: Path, config: PlanConfig | None) -> Subject:
    """A packed set, a plan, a token store or a file of lengths.

    Args:
        config: how to plan lengths; None for what is planned already, and for lengths alone.

    Raises:
        ConfigError, InputError, FormatError, RunError: as `stats_of`.
    """
    name = _name_of(path)
    if path.name == PLAN_NAME and path.is_file():
        path = path.parent
    if config is None and (path / PLAN_NAME).exists():
        found = read_planned(path, check=True)
        samples, sources = _samples_of_set(path, found)
        return Subject(name=name, planned=found, samples=samples, sources=sources)
    samples = require_samples(path)
    planned = None if config is None else plan_in_memory(samples, config)
    return Subject(name=name, planned=planned, samples=samples, sources=_source_names(path))


def subject_of_plan(planned: Planned) -> Subject:
    """A plan that was made or read before."""
    return Subject(name="Plan", planned=planned, samples=planned.samples or _samples_of_plan(planned))


def subject_of_samples(samples: Samples, config: PlanConfig | None) -> Subject:
    """Samples of which the lengths are at hand; see `subject_at`."""
    planned = None if config is None else plan_in_memory(samples, config)
    return Subject(name="Lengths" if planned is None else "Plan", planned=planned, samples=samples)


def _samples_of_set(path: Path, planned: Planned) -> tuple[Samples, tuple[str, ...]]:
    """The samples of a planned set and the names of their sources: of its token store or, without it, of its plan."""
    assert planned.header is not None
    store = store_of(path, planned.header)
    if (store / INDEX_NAME).exists():
        try:
            opened = TokenStore.open(store)
            if opened.index.fingerprint == planned.header.store_fingerprint:
                return samples_of_store(opened), tuple(source.name for source in opened.index.sources)
        except (FormatError, InputError):
            pass
    return _samples_of_plan(planned), ()


def _samples_of_plan(planned: Planned) -> Samples:
    _, _, lengths = join(planned.arrays.pieces)
    return Samples(lengths=lengths)


def _source_names(path: Path) -> tuple[str, ...]:
    """The inputs of a token store, or of a set that holds one."""
    for folder in (path, path / "tokens"):
        if (folder / INDEX_NAME).exists():
            return tuple(source.name for source in TokenStore.open(folder).index.sources)
    return ()


def _name_of(path: Path) -> str:
    path = path.absolute() if isinstance(path, Path) else path
    return path.parent.name if path.name == PLAN_NAME else path.name
