"""Facts about the plan of a token store: what it leaves out and why, its loss, and notes for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer_cli.config import PlannedConfig
from packer_cli.config.resolve import size_rule
from packer_cli.errors import RunError
from packer_cli.format.constants import REFERENCE_VALUES, REJECTED_NAME
from packer_cli.format.metrics import Counts, SampleCounts
from packer_cli.plan.core.cut import Cut, Samples
from packer_cli.plan.core.types import WHOLE, Int32Array, PieceLoss, Pieces, Plan
from packer_cli.plan.notes import overflow_notes, reasons_lost, row_notes, why_over
from packer_cli.shards.plan_file import PlanHeader
from packer_cli.sizes import counted
from packer_cli.tokens.accounts import files_of, inputs_of, reasons_of
from packer_cli.tokens.choices import all_rejected
from packer_cli.tokens.index import StoreIndex
from packer_cli.tokens.rejects import RejectedRecord, store_rejects
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import TokenStore

_BLOCK = 1 << 20


class NothingToPlanError(RunError):
    """Error of a plan for which no sample is left."""


def left_out(config: PlannedConfig, of_store: StoreSamples, cut: Cut | None = None) -> Iterator[RejectedRecord]:
    """Yield the lines of `rejected.jsonl` of a plan: rejected records, and samples of which the plan loses tokens.

    The lines have the file names that the store has now. Raises FormatError if the store is damaged.

    Args:
        cut: of the samples, if it was made already.
    """
    yield from store_rejects(of_store.records_of(config), of_store.store.folder)
    cut = cut or of_store.of(config).cut(size_rule(config), config.seed)
    if config.overflow != "error":  # Otherwise the plan has them all, or there is none.
        for (file, line), (_, reason) in zip(of_store.store.locate(cut.lost().sample), reasons_lost(cut), strict=True):
            yield RejectedRecord(file=file, line=line, reason=reason)
    if config.dedup == "drop" and not config.is_validation:
        for file, line in of_store.store.locate(of_store.duplicates):
            yield RejectedRecord(file=file, line=line, reason="duplicate")


def why_nothing(store: TokenStore, cut: Cut, is_validation: bool, folder: Path) -> str:
    """Say why there is nothing to plan; `folder` is that of the plan."""
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


def refuse_overflow(store: TokenStore, cut: Cut) -> None:
    """Raise RunError for the first sample over the limits."""
    file, line = next(store.locate(cut.over[:1]))
    what = why_over(cut, int(cut.over[0]))
    raise RunError(
        f"{file}:{line}: {what} ({counted(len(cut.over), f'such {store.index.unit}')}); choose --overflow split, "
        "truncate or drop"
    )


def piece_loss_of(store: TokenStore, samples: Samples, pieces: Pieces) -> PieceLoss:
    """Measure the loss of pieces: their loss tokens and, in a store with weights, the sums of those."""
    weights = _piece_weights(store, pieces) if store.index.columns.is_weighted else None
    return PieceLoss(_piece_loss_tokens(store, samples, pieces), weights)


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
    notes = _share_notes(of_store.store.index, counts)
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


def _share_notes(index: StoreIndex, counts: SampleCounts) -> list[str]:
    """Write a note for people on each input with a requested number of tokens an epoch: how many an epoch has."""
    if counts.inputs is None:  # Of a validation set.
        return []
    return [
        f"{source.name}: {got.tokens:,} tokens an epoch, {source.tokens:,} asked for; the input has "
        f"{source.read.tokens:,}"
        for source, got in zip(inputs_of(index), counts.inputs, strict=True)
        if source.tokens is not None
    ]


def _reference_notes(store: TokenStore, pieces: Pieces) -> list[str]:
    """Write a note for people on the pairs that lose a reference model's log-probabilities, since they are cut off."""
    if not pieces.of_items:
        return []
    cut = np.unique(pieces.sample[pieces.depth < WHOLE])
    num_lost = int(store.have_reference(cut).sum())
    what = "pair that is cut off loses its", "pairs that are cut off lose their"
    return [f"{num_lost:,} {what[num_lost > 1]} {' and '.join(REFERENCE_VALUES)}"] if num_lost else []


def counts_of(config: PlannedConfig, of_store: StoreSamples, of_samples: SampleCounts, loss: PieceLoss) -> Counts:
    """Count the records by their outcome."""
    records, inputs, num_duplicates = of_store.records_of(config), of_samples.inputs, None
    if config.dedup != "off" and inputs is not None:  # Else it is a validation set.
        of_each = np.bincount(of_store.store.sources_of(of_store.duplicates), minlength=len(inputs)).tolist()
        inputs = tuple(replace(each, duplicates=num) for each, num in zip(inputs, of_each, strict=True))
        num_duplicates = sum(of_each)
    is_left_out = config.dedup == "drop"
    return Counts(
        **vars(replace(of_samples, inputs=inputs)),
        records=records.total("num_samples") + records.total("num_rejected") if records.parts else of_samples.samples,
        rejected=records.total("num_rejected"),
        records_without_loss=records.total("num_without_loss"),
        pieces_without_loss=int(np.count_nonzero(loss.tokens == 0)),
        records_with_special_tokens=records.total("num_with_special"),
        loss_tokens=None if loss.weights is None else int(loss.tokens.sum(dtype=np.int64)),
        loss_weight=None if loss.weights is None else float(loss.weights.sum()),
        reasons=reasons_of(files_of(records)) or None,
        not_used=dict(records.unused) or None,
        duplicates=None if is_left_out else num_duplicates,
        duplicates_left_out=num_duplicates if is_left_out else None,
    )
