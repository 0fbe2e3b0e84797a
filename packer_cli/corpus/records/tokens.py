"""Tokenized records: `{"input_ids": [...]}` with an optional loss, one sample or several packed into one row.

They are read many at a time, see `token_rows`.
"""

from __future__ import annotations

from typing import NamedTuple

from packer_cli.corpus.records.base import BadRecordError, Shape
from packer_cli.corpus.records.weights import WEIGHTS
from packer_cli.corpus.types import Record

IDS, LABELS, PADDING, POSITIONS, LENGTHS = "input_ids", "labels", "attention_mask", "position_ids", "seq_lengths"
MASKS = ("loss_mask", "assistant_masks", "completion_mask")
COLUMNS = (IDS, LABELS, *MASKS, PADDING, POSITIONS, LENGTHS)
PAIR_IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
NO_BOOLEANS = (IDS, LABELS, POSITIONS, LENGTHS, *PAIR_IDS)
"""Columns in which True is not 1."""


class TokenRecord(NamedTuple):
    """A tokenized record, or preference pair, to be read with others by `read_records`."""

    line: int
    record: Record
    values: dict[str, float] | None = None
    """Values that a pair brings; None: it is none."""


def parse(record: Record, line: int) -> TokenRecord:
    """Return the record itself, unless it has no ids."""
    if record[IDS] is None:
        raise BadRecordError(f'"{IDS}" must be an array of integers, this is null')
    return TokenRecord(line, record)


SHAPE = Shape(((IDS,),), (*COLUMNS[1:], *WEIGHTS), parse)
