"""The columns of tokenized records, and values from JSON as arrays."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from packer_cli.corpus.records.base import BadRecordError, type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

IDS, LABELS, PADDING, POSITIONS, LENGTHS = "input_ids", "labels", "attention_mask", "position_ids", "seq_lengths"
MASKS = ("loss_mask", "assistant_masks", "completion_mask")
COLUMNS = (IDS, LABELS, *MASKS, PADDING, POSITIONS, LENGTHS)
NO_LOSS = -100
MAX_ID = 2**31 - 1
NO_BOOLEANS = (IDS, LABELS, POSITIONS, LENGTHS)
"""Columns in which True is not 1."""


def integers(value: Any, name: str) -> NDArray[Any]:
    """`value` as an array of integers or booleans; raises BadRecordError with a reason if it is not one."""
    import numpy as np

    if isinstance(value, list):
        try:
            found = np.asarray(array("q", value))
        except OverflowError:
            raise BadRecordError(f'"{name}" holds an integer beyond 64 bits') from None
        except TypeError:
            raise _not_integer(value, name) from None
        if name in NO_BOOLEANS:  # They pass for 0 and 1.
            for index in np.flatnonzero((found == 0) | (found == 1)).tolist():
                if type(value[index]) is bool:
                    raise _not_integer(value, name)
        return found
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iub":
        if value.dtype.kind == "b" and name in NO_BOOLEANS and len(value):
            raise _not_integer(value.tolist(), name)
        return value
    raise BadRecordError(f'"{name}" must be an array of integers, this is {type_name(value)}')


def _not_integer(value: list[Any], name: str) -> BadRecordError:
    kinds = (int,) if name in NO_BOOLEANS else (int, bool)
    index = next(index for index, entry in enumerate(value) if type(entry) not in kinds)
    return BadRecordError(f"{name}[{index}] must be an integer, this is {type_name(value[index])}")
