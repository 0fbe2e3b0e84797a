"""The way from a token store to a checked plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer_cli.commands.output_folder import RejectedRecord, store_rejects
from packer_cli.config import PlanConfig, PlannedConfig
from packer_cli.config.resolve import Resolved, load_model, resolve, size_rule
from packer_cli.engine.local import available_memory
from packer_cli.engine.progress import say
from packer_cli.errors import ConfigError, RunError
from packer_cli.format.constants import REFERENCE_VALUES, REJECTED_NAME
from packer_cli.format.metrics import Counts, GroupChoice, PlanMetrics, SampleCounts
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.mixture import tokens_of_sources
from packer_cli.plan.core.samples import Cut, Samples, require_pieces
from packer_cli.plan.core.types import WHOLE, Int32Array, ItemPieces, PieceLoss, Pieces, Plan
from packer_cli.plan.figures import plan_stats
from packer_cli.plan.notes import overflow_notes, reasons_lost, row_notes, why_over
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.shards.plan_file import PlanHeader
from packer_cli.sizes import counted
from packer_cli.tokens.choices import all_rejected
from packer_cli.tokens.index import StoreIndex
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import TokenStore


def resolve_for(
    config: PlanConfig, samples: Samples, given: Collection[str] = ()
) -> tuple[Resolved, GroupChoice | None]:
    """Resolve the options, with groups in place of `auto`; return them, and a plan's record of that choice.

    Args:
        given: see `resolve`.
    """
    unit, choice = samples.unit if samples.num_samples else None, None
    if not config.groups:
        from packer_cli.groups.auto import groups_for  # Only `auto` needs the search.

        config = config.for_unit(unit)
        config, choice = groups_for(config, sizes_for(config, samples))
    return resolve(config, unit, given), choice


def sizes_for(config: PlanConfig, samples: Samples) -> Int32Array:
    """Return the capacity that samples or items of an epoch take (int32[m], tokens), for the choice of `auto` groups.

    Raises:
        ConfigError: an option does not go with items.
    """
    limits = resolve(config, samples.unit).request.limits if samples.unit == "item" else ()
    return samples.epoch_sizes(config.seed, limits)


def say_choice(choice: GroupChoice | None) -> None:
    """Print the groups that were chosen, if they were."""
    if choice is not None:
        from packer_cli.groups.auto import describe

        say(describe(choice))


def plan_cut(
    samples: Samples, resolved: Resolved, pieces_of: Callable[[Cut], Pieces] = require_pieces
) -> tuple[Plan, Cut]:
    """Plan samples, and check the plan; return the plan, and the samples' cut.

    Args:
        pieces_of: returns the pieces of a cut, or raises RunError with the reason why they cannot be planned.

    Raises:
        RunError: there is nothing to plan, or too much for the memory, or a sample is too long under
            `--overflow error`.
        PlanError: the plan broke an invariant, which is a bug.
    """
    request = resolved.request
    of_each = (request.strategy.sample_bytes or request.algorithm.bytes_a_sample) + _ITEM_BYTES * bool(request.limits)
    require_memory(samples.num_wanted, of_each)
    cut = samples.cut(size_rule(resolved.config), request.seed)
    plan = build_plan(pieces_of(cut), request)
    cut.check(plan.pieces)  # The packing may have cut them.
    check_plan(plan)
    _say_short_curriculum(plan, request)
    return plan, cut


def _say_short_curriculum(plan: Plan, request: PlanRequest) -> None:
    """Print a line if the first steps could not all be short, see `StepRules.curriculum_share`."""
    rules, schedule = request.steps, plan.epochs[0]
    if not rules.curriculum_steps or rules.curriculum_share == 1 or len(plan.groups) == 1:
        return
    is_long = schedule.slot_group == len(plan.groups) - 1
    num_short = int(schedule.iteration_step[schedule.slot_iteration[is_long]].min(initial=schedule.num_steps))
    if num_short < min(rules.curriculum_steps, schedule.num_steps):
        say(
            f"the curriculum takes {counted(num_short, 'step')}, not {rules.curriculum_steps}: "
            f"{rules.curriculum_share:.0%} of the short iterations, so that the others mix with the long ones"
        )


class NothingToPlanError(RunError):
    """Error of a plan for which no sample is left."""


def plan_store(
    of_store: StoreSamples, resolved: Resolved, folder: Path
) -> tuple[Plan, PieceLoss, Counts, PlanMetrics, Cut]:
    """Plan the samples of a store that the options ask for; the errors are those of `plan_cut`.

    Args:
        folder: the folder that will hold the plan; for messages.

    Returns:
        The plan, the loss of its pieces, the records by their outcome, the plan's figures, and the samples' cut.
    """
    store, config, is_validation = of_store.store, resolved.config, resolved.config.is_validation
    samples = of_store.of(config.validation, is_validation)

    def pieces_of(cut: Cut) -> Pieces:
        if cut.rule.overflow == "error" and len(cut.over):
            _refuse_overflow(store, cut)
        if not len(cut.pieces):
            raise NothingToPlanError(_why_nothing(store, cut, is_validation, folder))
        return cut.pieces

    plan, cut = plan_cut(samples, resolved, pieces_of)
    plan = predicted(plan, config)
    weights = _piece_weights(store, plan.pieces) if store.index.columns.is_weighted else None
    loss = PieceLoss(_piece_loss_tokens(store, samples, plan.pieces), weights)
    counts = _counts(of_store.records_of(config), cut.counts(plan.pieces), loss)
    return plan, loss, counts, plan_stats(plan, resolved.request, samples.sources), cut


def with_gpu_model(resolved: Resolved, config: PlanConfig) -> Resolved:
    """Add the model that predicts steps, which the given options name, to the resolved ones.

    A model that cannot predict is left out, with a line that says so.

    Raises:
        ConfigError, InputError: options are missing, contradict each other or are wrong, or a file is missing or is no
            model config or profile.
    """
    from packer_cli.config.gpu_model import PREDICTION, model_values  # Only predictions need the cost model.
    from packer_cli.cost.analytic import NOT_MEASURED, parse_assumptions

    config.require_gpu_model(PREDICTION)
    parse_assumptions(config.assume, NOT_MEASURED if config.profile else None)
    try:
        return resolved.noting(gpu_model=model_values(load_model(config, PREDICTION)))
    except ConfigError as error:  # A profile of too few rows.
        say(f"{_NO_SECONDS}: {error}")
        return resolved


def predicted(plan: Plan, config: PlannedConfig) -> Plan:
    """Add predicted seconds of its steps to a plan, if its options have a model of the GPUs that can predict them."""
    if config.gpu_model is None:
        return plan
    from packer_cli.simulate.figures import with_step_seconds  # Only predictions need the simulator.

    try:
        return with_step_seconds(plan, config.gpu_model)
    except (ConfigError, ValueError) as error:
        say(f"{_NO_SECONDS}: {error}")
        return plan


_NO_SECONDS = "the steps get no predicted seconds"
_BLOCK = 1 << 20
_ITEM_BYTES = 200
"""Bytes that a plan takes for each item, besides those for a sample; measured on half a million pairs."""


def left_out(config: PlannedConfig, of_store: StoreSamples, cut: Cut | None = None) -> Iterator[RejectedRecord]:
    """Yield the lines of `rejected.jsonl` of a plan: rejected records, and samples of which the plan loses tokens.

    The lines have the file names that the store has now. Raises FormatError if the store is damaged.

    Args:
        cut: of the samples, if it was made already.
    """
    yield from store_rejects(of_store.records_of(config), of_store.store.folder)
    cut = cut or of_store.of(config.validation, config.is_validation).cut(size_rule(config), config.seed)
    if config.overflow == "error":  # There was no plan.
        return
    for (file, line), (_, reason) in zip(of_store.store.locate(cut.lost().sample), reasons_lost(cut), strict=True):
        yield RejectedRecord(file=file, line=line, reason=reason)


def _why_nothing(store: TokenStore, cut: Cut, is_validation: bool, folder: Path) -> str:
    num_rejected = store.index.total("num_rejected")
    if not len(store) and not num_rejected:
        return "there is nothing to plan: the inputs hold no records"
    if not len(store):
        return f"there is nothing to plan: {all_rejected(store.index)}, see {str(folder / REJECTED_NAME)!r}"
    if cut.chosen is not None and not len(cut.chosen):
        return "there is nothing to plan: the weights leave out every sample; raise them"
    what, capacity = "validation " * is_validation, cut.rule.capacity
    if cut.rule.overflow != "drop":  # Only items are left out then.
        return (
            f"there is nothing to plan: all {what}items are over the largest group's {capacity}, and no cut that fits "
            "leaves each branch a loss token; give longer --groups"
        )
    takes = "samples have" if store.index.unit == "sample" else "items take"
    return (
        f"there is nothing to plan: all {what}{takes} more than {capacity} tokens, and --overflow drop leaves "
        "them out; give longer --groups, or another --overflow"
    )


def _refuse_overflow(store: TokenStore, cut: Cut) -> None:
    file, line = next(store.locate(cut.over[:1]))
    what = why_over(cut, int(cut.over[0]))
    raise RunError(
        f"{file}:{line}: {what} ({counted(len(cut.over), f'such {store.index.unit}')}); choose --overflow split, "
        "truncate or drop"
    )


def _piece_weights(store: TokenStore, pieces: Pieces) -> NDArray[np.float64]:
    weights = np.empty(len(pieces), dtype=np.float64)
    pieces = replace(pieces, samples=pieces.sample)
    for first in range(0, len(pieces), _BLOCK):
        block = slice(first, first + _BLOCK)
        weights[block] = store.loss_of(pieces.take(block), is_weighted=True)
    return weights


def _piece_loss_tokens(store: TokenStore, samples: Samples, pieces: Pieces) -> Int32Array:
    """Count the loss tokens of each piece; only the loss spans of cut samples are read."""
    of_samples = store.num_loss_tokens()
    if pieces.samples is None:
        return of_samples
    loss_tokens = of_samples[pieces.samples]
    num_branches, of_each = pieces.num_branches, samples.num_branches
    for first in range(0, len(pieces), _BLOCK):
        block = slice(first, first + _BLOCK)
        of = pieces.samples[block]
        is_cut = pieces.length[block] != samples.lengths[of]
        is_cut |= num_branches[block] != of_each[of]  # An item may lack a branch that is equal to others.
        cut = first + np.flatnonzero(is_cut)
        if len(cut):
            loss_tokens[cut] = store.loss_of(pieces.take(cut), is_weighted=False)
    return loss_tokens


def plan_notes(of_store: StoreSamples, plan: Plan, piece_loss: PieceLoss, header: PlanHeader) -> list[str]:
    """Write notes for people on a plan: on its mixture, on what it loses, and on its rows."""
    pieces, config, counts = plan.pieces, header.config, header.counts
    notes = [] if config.is_validation else _share_notes(of_store, pieces)
    notes += overflow_notes(counts, config.groups[-1].capacity, config.overflow, config.max_path_tokens)
    notes += [*_reference_notes(of_store.store, pieces), *row_notes(plan, config.max_path_tokens)]
    if counts.pieces_without_loss:
        notes.append(_without_loss(of_store.store, pieces, np.flatnonzero(piece_loss.tokens == 0)))
    return notes


def _without_loss(store: TokenStore, pieces: Pieces, lost: NDArray[np.int64]) -> str:
    """Write a note on the pieces (int64[k]) of cut samples that have no loss, with the record of the first one."""
    has, them = ("has", "it") if len(lost) == 1 else ("have", "them")
    sample, start = pieces.sample[lost], pieces.start[lost]
    at = np.lexsort((start, sample))[0]
    file, line = next(store.locate(sample[at : at + 1]))
    which, last = "it" if len(lost) == 1 else "the first", int(start[at]) + int(pieces.length[lost[at]]) - 1
    return (
        f"{counted(len(lost), 'piece')} of cut samples {has} no loss tokens, so a model learns nothing from {them}; "
        f"{which} is tokens {start[at]:,} to {last:,} of {file}:{line}; cut fewer samples with longer --groups, or "
        "leave them out with --overflow drop"
    )


def _share_notes(of_store: StoreSamples, pieces: Pieces) -> list[str]:
    """Write a note for people on each input with a requested number of tokens an epoch: how many an epoch has."""
    store, inputs = of_store.store, of_store.store.index.sources
    if all(source.tokens is None for source in inputs):
        return []
    sources, planned = store.sources(), np.zeros(len(inputs), dtype=np.int64)
    for first in range(0, len(pieces), _BLOCK):
        block = slice(first, first + _BLOCK)
        of_block = np.bincount(sources[pieces.sample[block]], weights=pieces.length[block], minlength=len(inputs))
        planned += of_block.astype(np.int64)
    held = tokens_of_sources(sources, store.lengths(), len(inputs))
    return [
        f"{source.name}: {got:,} tokens an epoch, {source.tokens:,} asked for; the input has {total:,}"
        for source, got, total in zip(inputs, planned.tolist(), held.tolist(), strict=True)
        if source.tokens is not None
    ]


def _reference_notes(store: TokenStore, pieces: Pieces) -> list[str]:
    """Write a note for people on the pairs that lose a reference model's log-probabilities, since they are cut off."""
    if not isinstance(pieces, ItemPieces):
        return []
    cut = np.unique(pieces.sample[pieces.trees.depth < WHOLE])
    num_lost = int(store.have_reference(cut).sum())
    what = "pair that is cut off loses its", "pairs that are cut off lose their"
    return [f"{num_lost:,} {what[num_lost > 1]} {' and '.join(REFERENCE_VALUES)}"] if num_lost else []


def _counts(records: StoreIndex, of_samples: SampleCounts, loss: PieceLoss) -> Counts:
    """Count the records by their outcome.

    Args:
        records: the store's index, as the plan sees it.
    """
    return Counts(
        **vars(of_samples),
        records=records.total("num_samples") + records.total("num_rejected") if records.parts else of_samples.samples,
        rejected=records.total("num_rejected"),
        records_without_loss=records.total("num_without_loss"),
        pieces_without_loss=int(np.count_nonzero(loss.tokens == 0)),
        records_with_special_tokens=records.total("num_with_special"),
        loss_tokens=None if loss.weights is None else int(loss.tokens.sum(dtype=np.int64)),
        loss_weight=None if loss.weights is None else float(loss.weights.sum()),
        not_used=dict(records.unused) or None,
    )


def require_memory(num_samples: float, of_each: int) -> None:
    """Raise RunError for more samples an epoch, of so many bytes each, than this process can plan in its memory."""
    available, needed = available_memory(), num_samples * of_each
    if available is not None and needed > available:
        raise RunError(
            f"planning {num_samples:,.0f} samples an epoch takes about {needed / 2**30:,.1f} GiB of memory, and this "
            f"process may have {available / 2**30:,.1f} GiB; give smaller weights (PATH@WEIGHT), divide the inputs "
            "among several sets, or plan on a machine with more memory"
        )
