"""Plain-Python twin of `corpus.records.tokens`: one tokenized record to its samples."""

from __future__ import annotations

from typing import Any

MASKS = ("loss_mask", "assistant_masks", "completion_mask")


def samples_of(record: dict[str, Any]) -> list[tuple[list[int], list[bool]]] | None:
    """(ids, loss mask) of each sample; None for a record that is rejected."""
    ids = record["input_ids"]
    labels = record.get("labels", ids)
    padding = record.get("attention_mask", [1] * len(ids))
    masks = [record[name] for name in MASKS if name in record]
    if not ids or any(len(each) != len(ids) for each in (labels, padding, *masks)):
        return None
    if any(not 0 <= each < 2**31 for each in ids) or any(a not in (-100, b) for a, b in zip(labels, ids, strict=True)):
        return None
    if any(bit not in (0, 1) for mask in masks for bit in mask):
        return None
    loss = [labels[i] != -100 and all(mask[i] for mask in masks) for i in range(len(ids))]
    real = [i for i in range(len(ids)) if padding[i]]
    borders = [_by_padding, _by_lengths, _by_positions]
    try:
        begins = [found for find in borders if (found := find(record, real)) is not None]
    except ValueError:
        return None
    if not real or any(each != begins[0] for each in begins):
        return None
    begin = begins[0] if begins else [real[0]]
    samples: list[tuple[list[int], list[bool]]] = []
    for i in real:
        if i in begin:
            samples.append(([], []))
        samples[-1][0].append(ids[i])
        samples[-1][1].append(loss[i])
    return samples


def _by_padding(record: dict[str, Any], real: list[int]) -> list[int] | None:
    counts = [record["attention_mask"][i] for i in real] if "attention_mask" in record else []
    for before, count in zip([0, *counts], counts, strict=False):
        if count not in ([before, before + 1] if before else [1]):
            raise ValueError
    return (
        [i for i, a, b in zip(real, [0, *counts], counts, strict=False) if a != b] if max([*counts, 1]) > 1 else None
    )


def _by_lengths(record: dict[str, Any], real: list[int]) -> list[int] | None:
    if "seq_lengths" not in record:
        return None
    numbers = [number for number, length in enumerate(record["seq_lengths"]) for _ in range(length)]
    if min([*record["seq_lengths"], 1]) < 1 or len(numbers) != len(record["input_ids"]):
        raise ValueError
    return [i for place, i in enumerate(real) if not place or numbers[i] != numbers[real[place - 1]]]


def _by_positions(record: dict[str, Any], real: list[int]) -> list[int] | None:
    if "position_ids" not in record:
        return None
    positions = record["position_ids"]
    if len(positions) != len(record["input_ids"]):
        raise ValueError
    before = -1
    for i in real:
        if positions[i] not in (0, before + 1):
            raise ValueError
        before = positions[i]
    return [i for i in real if positions[i] == 0]
