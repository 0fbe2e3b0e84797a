"""Items: which samples of a batch belong together, and where the loss of answers to one prompt begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.ragged import common_prefix, take_samples
from packer_cli.corpus.types import Document, TokenBatch
from packer_cli.format.constants import ITEM_VALUES
from packer_cli.format.ragged import begins_run, expand, owners
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
    """Add its items to a batch, less those of which a sample is missing, whose lines have a reject.

    Args:
        documents: of items, by line.
    """
    encoded = _without_parts(encoded, documents)
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


def _without_parts(encoded: EncodedBatch, documents: Mapping[int, Document]) -> EncodedBatch:
    """Leave out the items of which samples were rejected, and reject each of these items once."""
    refused = {reject.line for reject in encoded.rejects if reject.line in documents}
    if not refused:
        return encoded
    firsts = {reject.line: reject for reject in reversed(encoded.rejects)}
    rejects = [each for each in encoded.rejects if each.line not in refused or each is firsts[each.line]]
    kept = np.flatnonzero(~np.isin(encoded.samples.lines, list(refused)))
    samples, items = take_samples(encoded.samples, kept), Items.of_samples(len(kept))
    return replace(encoded, samples=samples, items=items, is_open=encoded.is_open[kept], rejects=rejects)
