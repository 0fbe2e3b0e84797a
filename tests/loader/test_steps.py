"""Optimizer steps of a plan, as loops take them."""

from __future__ import annotations

from itertools import islice
from typing import Any

from packer_cli.loader import PackedDataset
from packer_cli.loader.steps import Step, packed_steps


def places(steps: list[Step]) -> list[tuple[int, int, list[int]]]:
    return [(step.epoch, step.number, [batch["iteration"] for batch in step.batches]) for step in steps]


def test_steps_begin_where_they_are_told_and_go_on_without_end(packed: Any) -> None:
    dataset = PackedDataset(packed.path, 2, 4)
    first = list(packed_steps(dataset))
    assert [step.number for step in first] == list(range(dataset.num_steps))
    assert [i for step in first for i in (batch["iteration"] for batch in step.batches)] == list(range(len(dataset)))
    assert len({len(step.batches) for step in first}) > 1
    assert [step.num_tokens for step in first] == [
        sum(batch["input_ids"].shape[1] for batch in step.batches) for step in first
    ]
    third = dataset.step_of(0) + 2
    begin = first[third].batches[0]["iteration"]
    assert places(list(packed_steps(dataset, begin))) == places(first[third:])
    assert list(packed_steps(dataset, len(dataset))) == []
    dataset.load_state_dict(first[-2].state)
    found = list(islice(packed_steps(dataset, endless=True), dataset.num_steps + 2))
    assert places(found[:1]) == places(first[-1:])
    assert [(step.epoch, step.number) for step in found[1:]] == [(1, i) for i in range(dataset.num_steps)] + [(2, 0)]
