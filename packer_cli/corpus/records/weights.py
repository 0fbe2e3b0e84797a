"""`weight` of a record or a message: how much its loss counts, 1 where there is none; and flags that leave it out.

Price: 30 ns a message with a role and content alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from packer_cli.corpus.records.base import BadRecordError, type_name
from packer_cli.corpus.types import Record

WEIGHT = "weight"
WEIGHTS = (WEIGHT, "loss_weight")
_LEFT_OUT = ("mask", "masked", "ignore")
YES_OR_NO = ("loss", "loss_mask", "train", "training", "trainable", "train_on", *_LEFT_OUT)
"""Whether there is a loss: axolotl, ms-swift, slime, verl; of `_LEFT_OUT`, whether there is none."""
FLAGS = (*WEIGHTS, *YES_OR_NO)
"""Keys of a record or a message."""
HAS_FLAGS = frozenset(FLAGS)
LISTS = {**dict(zip(FLAGS, FLAGS, strict=True)), "weights": WEIGHT, "loss_weights": WEIGHT, "train_on_turn": "train"}
"""Key beside messages that may hold an array, a value for each -> the key of a message that says the same."""
LEAST, MOST = 1e-9, 1e9
"""Bounds of weights but 0. The product of two is far from the ends of float32."""
_WORDS = {"true": True, "false": False}


def read_weight(record: Record, where: str = "", names: Sequence[str] = FLAGS) -> float:
    """Read the weight of a record or a message; see `stated_weight`."""
    stated = None if HAS_FLAGS.isdisjoint(record) else stated_weight(record, where, names)
    return 1.0 if stated is None else stated


def stated_weight(record: Record, where: str = "", names: Sequence[str] = FLAGS) -> float | None:
    """Return the weight that a record or a message states; 0 or 1 by a flag alone, None if it has none.

    Args:
        where: the place in the record, for errors.
        names: the keys to look at, in the order of `FLAGS`.

    Raises:
        BadRecordError: a value has another type or is out of range, or two contradict each other.
    """
    prefix = f"{where}: " if where else ""
    found: float | None = None
    by = ""
    for name in names:
        value = record.get(name)
        if value is None:
            continue
        weight = _read(value, name, prefix)
        if found is None:
            found, by = weight, name
        elif (weight == 0) != (found == 0) or (name in WEIGHTS and weight != found):
            both = f'"{by}" is {_shown(record[by])} but "{name}" is {_shown(value)}'
            raise BadRecordError(f"{prefix}{both}; these contradict each other, keep one of them")
    return found


def _read(value: Any, name: str, prefix: str) -> float:
    """Read the weight by one key."""
    is_weight = name in WEIGHTS
    if isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if not isinstance(value, int | float | Decimal):
        what = "a number" if is_weight else "true or false"
        raise BadRecordError(f'{prefix}"{name}" must be {what}, this is {type_name(value)}')
    if is_weight and value != 0 and not LEAST <= value <= MOST:
        raise BadRecordError(f'{prefix}"{name}" is {_shown(value)}; a weight is 0, or from 1e-9 to 1e9')
    if not is_weight and value not in (0, 1):
        rule = f'"{name}" is {_shown(value)}, neither true nor false'
        raise BadRecordError(
            f'{prefix}{rule}; write a weight as "{WEIGHT}", and remove anything else, as a logged loss'
        )
    return float(not value if name in _LEFT_OUT else value)


def _shown(value: Any) -> str:
    """Show a value for errors, as JSON writes it."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return shown if len(shown) <= 30 else shown[:27] + "..."
