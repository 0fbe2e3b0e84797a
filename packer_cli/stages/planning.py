"""From a token store to a checked plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer_cli.config import PlanConfig
from packer_cli.engine.progress import say
from packer_cli.errors import RunError
from packer_cli.files import fingerprint
from packer_cli.format.choice import GroupChoice
from packer_cli.format.constants import REJECTED_NAME
from packer_cli.format.metrics import Counts, SampleCounts
from packer_cli.plan.build import build_plan
from packer_cli.plan.check import check_pieces, check_plan
from packer_cli.plan.figures import plan_stats
from packer_cli.plan.pieces import make_pieces
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.samples import Samples, sample_counts, weighted_samples
from packer_cli.plan.types import Int32Array, Int64Array, Pieces, Plan
from packer_cli.shards.plan_file import PLAN_VERSION, PlanHeader
from packer_cli.sizes import counted
from packer_cli.stages.rejected import RejectedRecord
from packer_cli.tokens.index import StoreIndex
from packer_cli.tokens.store import TokenStore


def samples_of_store(store: TokenStore) -> Samples:
    """All samples of a token store."""
    weights = tuple(source.weight for source in store.index.sources)
    return Samples(lengths=store.lengths(), sources=store.sources(), weights=weights)


def with_known_groups(config: PlanConfig, samples: Callable[[], Samples]) -> tuple[PlanConfig, GroupChoice | None]:
    """The options with `auto` replaced by groups, and what a plan records about the choice."""
    if not config.is_auto:
        return config, None  # No need to read the samples.
    from packer_cli.groups.auto import describe, resolve

    config, choice = resolve(config, samples().epoch_lengths(config.seed))
    if choice is not None:
        say(describe(choice))
    return config, choice


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """A checked plan and what is written along with it."""

    plan: Plan
    piece_loss_tokens: NDArray[np.int32]
    header: PlanHeader
    overflow: list[RejectedRecord]
    """Samples that were dropped or truncated."""


class NothingToPlanError(RunError):
    """No sample is left to plan."""

    def __init__(self, message: str, overflow: list[RejectedRecord]) -> None:
        super().__init__(message)
        self.overflow = overflow
        """As in `PlanResult`."""


def plan_fingerprint(config: PlanConfig, store_fingerprint: str, group_choice: GroupChoice | None = None) -> str:
    """Equal for plans with equal bytes. `group_choice` records how automatic groups were chosen."""
    facts = [config.decisions(), store_fingerprint, PLAN_VERSION]
    return fingerprint(*facts, *([asdict(group_choice)] if group_choice else []))


def plan_store(
    config: PlanConfig, rules: PlanRules, store: TokenStore, folder: Path, group_choice: GroupChoice | None = None
) -> PlanResult:
    """Plan all samples of a store. `folder` will hold the plan; the header gives the store's path relative to it.

    Args:
        rules: `config`, parsed.
        group_choice: recorded in the header, see `packer_cli.groups.auto`.

    Raises:
        RunError: there is nothing to plan, or a sample is too long under `--overflow error`.
        PlanError: the plan broke an invariant, which is a bug.
    """
    weights = [source.weight for source in store.index.sources]
    lengths = store.lengths()
    sources = store.sources()
    samples = weighted_samples(sources, weights, config.seed)
    capacity = rules.groups[-1].capacity
    _refuse_overflow(config, store, lengths, samples, capacity)
    pieces = make_pieces(lengths, samples, capacity, config.overflow)
    if not len(pieces):
        raise NothingToPlanError(
            _why_nothing(store, samples, folder), _overflow_entries(config, store, lengths, samples, capacity)
        )
    plan = build_plan(pieces, rules)
    pieces = plan.pieces  # The packing may have cut them.
    kept = samples if config.overflow != "drop" else samples[lengths[samples] <= capacity]
    check_pieces(pieces, lengths, kept, is_whole=config.overflow != "truncate")
    check_plan(plan)
    header = PlanHeader(
        fingerprint=plan_fingerprint(config, store.index.fingerprint, group_choice),
        store=os.path.relpath(store.folder, folder),
        store_fingerprint=store.index.fingerprint,
        config=config,
        group_choice=group_choice,
        counts=_counts(store, sample_counts(lengths, samples, pieces, capacity, config.overflow)),
        metrics=plan_stats(plan, config.seed, sources, rules.linear),
    )
    return PlanResult(
        plan=plan,
        piece_loss_tokens=_piece_loss_tokens(store, lengths, pieces),
        header=header,
        overflow=_overflow_entries(config, store, lengths, samples, capacity),
    )


def overflow_entries(config: PlanConfig, folder: Path, index: StoreIndex) -> list[RejectedRecord]:
    """`PlanResult.overflow` of an existing plan, with the file names that its token store has now.

    Raises:
        FormatError: the store is damaged.
    """
    if config.overflow not in _OVERFLOW:
        return []  # No need to open the store.
    store = TokenStore(folder, index)
    samples = weighted_samples(store.sources(), [source.weight for source in index.sources], config.seed)
    return _overflow_entries(config, store, store.lengths(), samples, config.groups[-1].capacity)


def _why_nothing(store: TokenStore, samples: Int64Array, folder: Path) -> str:
    reasons = repr(str(folder / REJECTED_NAME))
    num_rejected = sum(part.num_rejected for part in store.index.parts)
    if not len(store) and not num_rejected:
        return "there is nothing to plan: the inputs hold no records"
    if not len(store):
        return f"there is nothing to plan: every record was rejected, see {reasons}"
    if not len(samples):
        return "there is nothing to plan: the weights leave out every sample; raise them"
    return f"there is nothing to plan: every sample was dropped, see {reasons}"


def _refuse_overflow(
    config: PlanConfig, store: TokenStore, lengths: Int32Array, samples: Int64Array, capacity: int
) -> None:
    if config.overflow != "error":
        return
    long = samples[lengths[samples] > capacity]
    if len(long):
        file, line = next(store.locate(long[:1]))
        raise RunError(
            f"{file}:{line}: the sample has {lengths[long[0]]} tokens, over the largest group's {capacity} "
            f"({counted(len(np.unique(long)), 'such sample')}); choose --overflow split, truncate or drop"
        )


def _piece_loss_tokens(store: TokenStore, lengths: Int32Array, pieces: Pieces) -> Int32Array:
    """Loss tokens of each piece; only the loss spans of cut samples are read."""
    loss_tokens = store.num_loss_tokens()[pieces.sample]
    cut = np.flatnonzero(pieces.length != lengths[pieces.sample])
    if len(cut):
        loss_tokens[cut] = store.loss_tokens_of(pieces.sample[cut], pieces.start[cut], pieces.length[cut])
    return loss_tokens


def _counts(store: TokenStore, of_samples: SampleCounts) -> Counts:
    parts = store.index.parts
    num_rejected = sum(part.num_rejected for part in parts)
    return Counts(
        **vars(of_samples),
        records=len(store) + num_rejected,
        rejected=num_rejected,
        records_with_special_tokens=sum(part.num_with_special for part in parts),
    )


_OVERFLOW = {"drop": "dropped", "truncate": "the rest was cut off"}


def _overflow_entries(
    config: PlanConfig, store: TokenStore, lengths: Int32Array, samples: Int64Array, capacity: int
) -> list[RejectedRecord]:
    if config.overflow not in _OVERFLOW:
        return []
    long = np.unique(samples[lengths[samples] > capacity])
    what = f"over the largest group's {capacity}; {_OVERFLOW[config.overflow]}"
    return [
        RejectedRecord(file=file, line=line, reason=f"has {length} tokens, {what}")
        for (file, line), length in zip(store.locate(long), lengths[long].tolist(), strict=True)
    ]
