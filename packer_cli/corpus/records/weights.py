"""`weight` of a record or a message: how much its loss counts, 1 where there is none.

Price: 30 ns a message with a role and content alone.
"""

from __future__ import annotations

from decimal import Decimal

from packer_cli.corpus.records.base import BadRecordError, type_name
from packer_cli.corpus.records.unused import check_turns
from packer_cli.corpus.types import Message, Record

WEIGHT = "weight"
LEAST, MOST = 1e-9, 1e9
"""Of weights but 0. The product of two is far from the ends of float32."""


def read_weight(record: Record, where: str = "") -> float:
    """The weight of a record or a message.

    Args:
        where: the place in the record, for errors.

    Raises:
        BadRecordError: it is not a number, or out of range.
    """
    value = record.get(WEIGHT)
    if value is None:
        return 1.0
    prefix = f"{where}: " if where else ""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise BadRecordError(f'{prefix}"{WEIGHT}" must be a number, this is {type_name(value)}')
    if value != 0 and not LEAST <= value <= MOST:
        shown = str(value)
        shown = shown if len(shown) <= 30 else shown[:27] + "..."
        raise BadRecordError(f'{prefix}"{WEIGHT}" is {shown}; a weight is 0, or from 1e-9 to 1e9')
    return float(value)


def take_weights(turns: list[Message], key: str) -> tuple[list[Message], tuple[float, ...] | None]:
    """The messages without weights, which are not for the template, and their weights; None if none has one.

    Args:
        key: of the messages in the record, for errors.

    Raises:
        BadRecordError: as for `read_weight` and `check_turns`.
    """
    for turn in turns:
        if len(turn) > 2:
            break
    else:
        return turns, None
    check_turns(turns, key)
    if not any(WEIGHT in turn for turn in turns):
        return turns, None
    weights = tuple(read_weight(turn, f"{key}[{index}]") for index, turn in enumerate(turns))
    return [{name: value for name, value in turn.items() if name != WEIGHT} for turn in turns], weights
