"""Preference pairs as token ids, and rows of them as trees: a data set that was never written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from packer_cli.format.ranks import RankRow
from packer_cli.loader import PackedDataset
from packer_cli.loader.build_batch import NO_PACK
from packer_cli.loader.formats import FORMATS
from tests.loader.packed_set import group_of
from tests.naive.trees import Branch, pack_of

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


def item_of(pair: Pair) -> list[Branch]:
    """Its samples, of which the completions carry a loss."""
    prompt = len(pair.prompt)
    return [Branch(pair.prompt + rest, [0] * prompt + [1] * len(rest)) for rest in (pair.chosen, pair.rejected)]


def make_batch(pairs: list[Pair], row: RankRow, first: int = 0) -> Any:
    """Of format "tree", rejected branches of every second pair first; without a pair, a filler.

    Args:
        first: id of the first pair.
    """
    format = FORMATS["tree"]
    builder = format.builder(
        pad_to="multiple", pad_to_multiple_of=1, pad_token_id=0, sp_slice=True, groups=(group_of(4096, 1),)
    )
    if not pairs:
        return format.adapt(builder.build(NO_PACK, row, 0))
    items, roles = [item_of(pair) for pair in pairs], [[0, 1] for _ in pairs]
    for item, of_item in zip(items[::2], roles[::2], strict=True):
        item.reverse()
        of_item.reverse()
    values = {name: np.array([getattr(pair, name) for pair in pairs], dtype=np.float32) for name in Pair._fields[3:]}
    pack = pack_of(items, **values)
    pack = pack._replace(branch_roles=np.array(roles, dtype=np.int16).ravel(), item_ids=pack.item_ids + first)
    return format.adapt(builder.build(pack, row, 0))


Steps = list[list[list[int]]]
"""Of each step, of each iteration, the number of pairs of each rank."""


class PairSet(PackedDataset):
    """As the data set of a rank, of so many pairs in each row."""

    path, format, epoch, position, num_steps = "OUT", "tree", 0, 0, 0
    replicas: dict[Any, Any] = {}
    fingerprint = "pairs"
    degree = 1
    """GPUs that share a row"""
    _manifest: Any = SimpleNamespace(
        tokens_fingerprint=None,
        counts=SimpleNamespace(samples=0, set_aside=0),
        planned=SimpleNamespace(is_validation=False),
    )

    def __init__(self, pairs: list[Pair], steps: Steps, rank: int) -> None:
        self.rank, self.world_size, self.num_steps = rank, len(steps[0][0]), len(steps)
        left, first = iter(pairs), 0
        self.batches: list[Any] = []
        for number, step in enumerate(steps):
            rows = [[[next(left) for _ in range(count)] for count in counts] for counts in step]
            of_step = [pair for row in rows for of_rank in row for pair in of_rank]
            num_loss = sum(len(pair.chosen) + len(pair.rejected) for pair in of_step)
            for row in rows:
                place = (number, len(self.batches), 0, 0, 0, 0, rank, self.world_size, 0)
                totals = (1, 2 * len(of_step), 1, num_loss, float(num_loss), len(of_step), max(map(len, row)))
                before = first + sum(map(len, row[:rank]))
                self.batches.append(make_batch(row[rank], RankRow(*place, *totals), before))
                first += sum(map(len, row))

    @property
    def folder(self) -> str:  # type: ignore[override]
        return str(self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        group = {
            "sp_size": self.degree,
            "cp_size": 1,
            "tp_size": 1,
            "pp_size": 1,
            "checkpoint_layers": 0,
            "num_samples": 0,
        }
        tokenizer = {"vocab_size": VOCABULARY}
        return {
            "groups": [group], "tokenizer": tokenizer, "config": {"plan": {}},
            "counts": {"items": {}},
            "fingerprint": self.fingerprint, "history": (), "first_epoch": 0, "epochs": ({"first_step": 0},),
        }  # fmt: skip

    def require_pairs(self) -> None:
        """They are."""

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Any:
        return self.batches[i]

    def __iter__(self) -> Iterator[Any]:
        return self.iter_from(self.position if self.position < len(self) else 0)

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

    def set_epoch(self, epoch: int) -> None:
        pass

    def begins_at(self, state: dict[str, Any]) -> bool:
        return False

    def predicted_seconds(self, i: int) -> float | None:
        return None
