"""Groups: several completions of one prompt.

::

    {"prompt": ..., "completions": ["...", ...], "rewards": [0.5, ...], "weights": [1, ...]}

The prompt and each completion are texts, or messages. `weights` say how much the loss of each completion counts, to be
multiplied with `weight`; `rewards` are kept for the trainer.
"""

from __future__ import annotations

from typing import Any

from packer_cli.corpus.records.answers import OPTIONAL, answers_to, read_answer, read_number
from packer_cli.corpus.records.base import BadRecordError, Shape, type_name
from packer_cli.corpus.records.weights import WEIGHT, read_weight
from packer_cli.corpus.types import Document, Record


def parse(record: Record, line: int) -> Document:
    """Read one group."""
    if record.get("labels") is not None:
        raise BadRecordError('"labels" makes "completions" the steps of one answer, which hbpack does not support')
    prompt, given = read_answer(record["prompt"], "prompt"), record["completions"]
    if not isinstance(given, list):
        raise BadRecordError(f'"completions" must be an array, this is {type_name(given)}')
    if not given:
        raise BadRecordError('"completions" is empty: there is nothing to train on')
    names = [f"completions[{index}]" for index in range(len(given))]
    answers = [(name, read_answer(value, name)) for name, value in zip(names, given, strict=True)]
    rewards = tuple(read_number(value, f"rewards[{i}]") for i, value in enumerate(_of_each(record, "rewards", given)))
    weight = read_weight(record)
    of_each = [
        read_weight({WEIGHT: value}, f"weights[{i}]") for i, value in enumerate(_of_each(record, "weights", given))
    ]
    weights = [weight * each for each in of_each] or [weight] * len(given)
    branches = answers_to("completions", record, line, prompt, answers, weights)
    return Document("completions", line, branches=branches, rewards=rewards)


def _of_each(record: Record, key: str, completions: list[Any]) -> list[Any]:
    """Read the values of an array that has one for each completion; none where there is no array."""
    values = record.get(key)
    if values is None:
        return []
    if not isinstance(values, list) and not hasattr(values, "tolist"):
        raise BadRecordError(f'"{key}" must be an array of numbers, this is {type_name(values)}')
    if len(values) != len(completions):
        raise BadRecordError(
            f'"{key}" has {len(values)} entries but "completions" has {len(completions)}; they must be equal'
        )
    return values if isinstance(values, list) else list(values.tolist())


SHAPE = Shape((("prompt", "completions"),), ("rewards", "weights", "labels", *OPTIONAL), parse)
