"""Items: which samples of a batch belong together, where the loss of answers to one prompt begins, and which are left
out since no token of a sample carries one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.ragged import common_prefix, take_samples
from packer_cli.corpus.types import Document, Reject, TokenBatch
from packer_cli.format.constants import ITEM_VALUES
from packer_cli.format.ragged import begins_run, expand, offsets_of, owners
from packer_cli.format.trees import GROUP, PAIR, PAIR_ROLES, SAMPLE, TURNS
from packer_cli.tokens.encode.rows import EncodedBatch, Items

_KINDS = {"preference": PAIR, "completions": GROUP}
MOST_BRANCHES = 1 << 15
"""Most branches of an item: a role is an int16."""
DIFFERS = "a prompt whose tokens change when an answer follows: its loss begins where they do, as in TRL"

EQUAL = "equal answers; such pairs are kept, as in TRL, but most losses learn nothing from them"


def kind_of(document: Document) -> int:
    """Return the kind of the item that a document with branches is."""
    return _KINDS.get(document.kind, TURNS)


def branch_name(kind: int, number: int) -> str:
    """Name a branch of an item, for people, by its number."""
    if kind == PAIR:
        return PAIR_ROLES[number]
    return f"completions[{number}]" if kind == GROUP else f"turn {number + 1}"


def begin_after_prompts(samples: TokenBatch, prompts: Mapping[int, NDArray[np.int32]]) -> tuple[TokenBatch, int]:
    """Leave the loss of prompts out of samples; return also the number of items whose answers change prompt tokens.

    A prompt ends where the ids of the prompt alone and of a whole sample part, at the first such place of an item's
    samples (TRL's rule, `DPOTrainer._prepare_dataset`).

    Args:
        prompts: ids of the prompt alone, by the first sample of an item, whose samples have one line.
    """
    lines, offsets, ids, loss_mask, _ = samples
    loss_mask = np.ones(len(ids), dtype=np.bool_) if loss_mask is None else loss_mask.copy()
    num_changed = 0
    for first, prompt in prompts.items():
        of_item = range(first, int(np.searchsorted(lines, lines[first], side="right")))
        border = min(common_prefix(prompt, ids[offsets[k] : offsets[k + 1]]) for k in of_item)
        num_changed += border < len(prompt)
        for k in of_item:
            loss_mask[offsets[k] : offsets[k] + border] = 0
    return samples._replace(loss_mask=loss_mask), num_changed


def with_items(encoded: EncodedBatch, documents: Mapping[int, Document]) -> EncodedBatch:
    """Add its items to a batch.

    Args:
        documents: of items, by line.
    """
    lines = encoded.samples.lines
    is_branch = np.isin(lines, np.fromiter(documents, dtype=np.int64, count=len(documents)))
    if not is_branch.any():
        return encoded
    starts = np.flatnonzero(~is_branch | begins_run(lines))
    offsets = np.append(starts, len(lines))
    roles = np.arange(len(lines)) - np.repeat(starts, np.diff(offsets))
    kinds = np.full(len(starts), SAMPLE, dtype=np.int8)
    rewards = np.full(len(lines), np.nan, dtype=np.float32)
    values = {name: np.full(len(starts), np.nan, dtype=np.float32) for name in ITEM_VALUES}
    for number in np.flatnonzero(is_branch[starts]).tolist():
        first, stop = offsets[number : number + 2]
        document = documents[int(lines[first])]
        kinds[number] = kind_of(document)
        if document.rewards:
            rewards[first:stop] = document.rewards
        for name, value in document.values.items():
            values[name][number] = value
    return replace(encoded, items=Items(offsets, kinds, roles.astype(np.int16), rewards, values))


def num_equal_pairs(samples: TokenBatch, items: Items) -> int:
    """Count pairs whose samples have the same tokens."""
    ids, borders = samples.input_ids, samples.offsets
    first = items.offsets[:-1][items.kinds == PAIR]
    lengths = np.diff(borders)
    first = first[lengths[first] == lengths[first + 1]]
    num = lengths[first]
    chosen, rejected = (ids[expand(borders[branch], num)] for branch in (first, first + 1))
    return len(first) - len(np.unique(owners(num)[chosen != rejected]))


REASON = "it has no loss tokens, so a model would learn nothing from it"
LEFT_OUT = "answers without a loss, which are left out of their groups"


def drop_without_loss(batch: EncodedBatch, unused: Counter[str]) -> tuple[EncodedBatch, list[Reject]]:
    """Keep the samples in which a token carries a loss; return them, and a reject for each of the others.

    A pair with a sample without loss is rejected; groups and turns go on without the sample, if any other is left.
    Such groups are counted in `unused`.
    """
    has_loss, items = _has_loss(batch.samples), batch.items
    if has_loss.all():
        return batch, []
    first = items.offsets[:-1]
    num = np.diff(items.offsets)
    num_left = np.add.reduceat(has_loss, first, dtype=np.int64)
    stays = np.where(items.kinds == PAIR, num_left == num, num_left > 0)
    kept = has_loss & np.repeat(stays, num)
    unused[LEFT_OUT] += int(np.count_nonzero(stays & (num_left < num) & (items.kinds == GROUP)))
    offsets = offsets_of(num_left[stays])
    values = {name: of_items[stays] for name, of_items in items.values.items()}
    left = Items(offsets, items.kinds[stays], items.roles[kept], items.rewards[kept], values)
    rejects = []
    for k in np.flatnonzero(~stays).tolist():
        begin, end = items.offsets[k : k + 2].tolist()
        why = REASON
        if num_left[k]:
            role = int(items.roles[begin + has_loss[begin:end].argmin()])
            why = f"{branch_name(PAIR, role)}: it has no loss tokens, so the pair is left out"
        rejects.append(Reject(int(batch.samples.lines[begin]), why))
    samples = take_samples(batch.samples, np.flatnonzero(kept))
    return replace(batch, samples=samples, is_open=batch.is_open[kept], items=left), rejects


def _has_loss(samples: TokenBatch) -> NDArray[np.bool_]:
    """Find whether a token of each sample carries a loss (bool[n]); the first token of a sample never does."""
    starts = samples.offsets[:-1]
    if samples.loss_mask is None or not len(starts):
        return np.diff(samples.offsets) > 1
    has_loss: NDArray[np.bool_] = samples.loss_mask != 0
    has_loss[starts] = False
    return np.logical_or.reduceat(has_loss, starts)
