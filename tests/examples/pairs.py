"""Preference pairs as token ids, and rows of them as trees, by the rule: a plain twin of what the loader gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from packer_cli.format.constants import TREES_VERSION
from packer_cli.format.trees import PAIR, Trees
from packer_cli.loader import PackedDataset

VOCABULARY = 1024


class Pair(NamedTuple):
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    margin: float
    ref_chosen_logps: float
    ref_rejected_logps: float


def make_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Some with completions that begin alike, are equal, or where one goes on where the other ends."""
    rng = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(least, most))]

    pairs = []
    for number in range(count):
        prompt, chosen, rejected = ids(2, 30), ids(1, 20), ids(1, 20)
        if number % 5 == 1:
            rejected = chosen[:3] + rejected
        if number % 5 == 2:
            rejected = chosen + rejected
        if number % 7 == 3:
            rejected = list(chosen)
        pairs.append(Pair(prompt, chosen, rejected, rng.random(), -rng.uniform(5, 90), -rng.uniform(5, 90)))
    return pairs


def make_batch(pairs: list[Pair], *, most: int, of_step: int) -> dict[str, Any]:
    """A row of pairs, rejected branches of every second one first; without a pair, a filler."""
    tokens, starts, parents, ends, roles, terms, lasts = [], [0], [], [], [], [], []
    for number, pair in enumerate(pairs):
        branches = [pair.prompt + pair.chosen, pair.prompt + pair.rejected]
        order = [0, 1] if number % 2 else [1, 0]
        keys = [[*zip(ids, [*ids[1:], None], strict=True)] for ids in branches]
        shared = next(
            (i for i, (a, b) in enumerate(zip(*keys, strict=False)) if a != b), min(len(branches[0]), len(branches[1]))
        )
        root, base = len(parents), len(tokens)
        if shared:
            tokens += branches[0][:shared]
            starts.append(len(tokens))
            parents.append(-1)
        for role in order:
            rest, begin = branches[role][shared:], len(tokens)
            if rest:
                tokens += rest
                starts.append(len(tokens))
                parents.append(root if shared else -1)
            ends.append(len(parents) - 1 if rest else root)
            roles.append(role)
            places = [*range(base, base + shared), *range(begin, begin + len(rest))]
            terms.append(places[len(pair.prompt) - 1 : -1])
            lasts.append(places[-1])
    if not pairs:
        tokens, starts, parents = [0] * 8, [0, 8], [-1]
    trees = Trees(np.array(starts, np.int32), np.array(parents, np.int32), np.array(ends, np.int32))
    is_leaf = np.ones(len(parents) + 1, dtype=bool)
    is_leaf[parents] = False
    paths = trees.paths(np.flatnonzero(is_leaf[:-1]))
    borders = np.append(0, trees.segment_starts[np.flatnonzero(is_leaf[:-1]) + 1]).astype(np.int32)
    token_index = np.array([place for places in terms for place in places], dtype=np.int64)
    weights = np.bincount(token_index, minlength=len(tokens)).astype(np.float32)
    labels = np.where(weights > 0, np.roll(tokens, -1), -100)
    values = {name: torch.tensor([getattr(pair, name) for pair in pairs]) for name in Pair._fields[3:]}
    arrays = {
        "input_ids": np.array(tokens)[None], "position_ids": trees.positions()[None], "shift_labels": labels[None],
        "loss_weights": weights, "tree_kv_index": paths.values, "tree_cu_seqlens_q": borders,
        "tree_cu_seqlens_k": paths.offsets.astype(np.int32), "token_index": token_index,
        "segment_id": np.repeat(np.arange(len(terms)), [len(places) for places in terms]).astype(np.int64),
        "last_index": np.array(lasts, dtype=np.int64), "branch_roles": np.array(roles, dtype=np.int64),
        "item_kinds": np.full(len(pairs), PAIR), **trees._asdict(),
    }  # fmt: skip
    return {
        **{name: torch.from_numpy(value) for name, value in arrays.items()},
        **values,
        "tree_max_seqlen_q": int(np.diff(borders).max()),
        "tree_max_seqlen_k": int(np.diff(paths.offsets).max()),
        "most_items": most,
        "global_num_items": of_step,
        "global_num_loss_tokens": 0,
        "checkpoint_layers": 0,
        **dict.fromkeys(("sp_size", "cp_size", "tp_size", "pp_size"), 1),
    }


Steps = list[list[list[int]]]
"""Of each step, of each iteration, the number of pairs of each rank."""


class PairSet(PackedDataset):
    """As the data set of a rank, of so many pairs in each row."""

    path, format, epoch, position, num_steps = "OUT", "tree", 0, 0, 0

    def __init__(self, pairs: list[Pair], steps: Steps, rank: int, **of_batches: Any) -> None:
        self.rank, self.world_size = rank, len(steps[0][0])
        left = iter(pairs)
        self.batches = []
        for number, step in enumerate(steps):
            for counts in step:
                rows = [[next(left) for _ in range(count)] for count in counts]
                batch = make_batch(rows[rank], most=max(counts), of_step=sum(map(sum, step)))
                where = {"step": number, "iteration": len(self.batches), "epoch": 0}
                self.batches.append(batch | where | of_batches)
        self.num_steps = len(steps)

    @property
    def manifest(self) -> dict[str, Any]:
        group = {"sp_size": 1, "cp_size": 1, "tp_size": 1, "pp_size": 1, "checkpoint_layers": 0, "num_samples": 0}
        tokenizer = {"vocab_size": VOCABULARY}
        return {
            "groups": [group], "tokenizer": tokenizer, "format_version": TREES_VERSION, "config": {"plan": {}},
        }  # fmt: skip

    replicas: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Any:
        return self.batches[i]

    def iter_from(self, i: int) -> Iterator[Any]:
        return iter(self.batches[i:])

    def step_of(self, i: int) -> int:
        return self.batches[i]["step"] if i < len(self) else self.num_steps

    def steps_of(self, epoch: int) -> int:
        return self.num_steps

    def state_dict(self, iteration: int | None = None) -> dict[str, Any]:
        return {"epoch": 0, "iteration": iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def begins_at(self, state: dict[str, Any]) -> bool:
        return False

    def predicted_seconds(self, i: int) -> float | None:
        return None
