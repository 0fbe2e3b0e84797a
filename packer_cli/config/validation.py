"""`--validation`: how many samples are set aside, as users write it and as a bound on the hashes of samples."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

NUM_HASHES = 2**64
"""A hash is a number below this."""

_RULE = "write a share of the samples, such as 1%, or a number of samples, such as 2000"


def read_validation(value: Any) -> str | None:
    """The value in one form, so that equal choices are equal text.

    Raises:
        ValueError: it is neither a share, nor a number, nor a bound as `format_bound` writes it.

    >>> read_validation("0.50%"), read_validation(2000), read_validation("0x028F5C28F5C28F5C")
    ('0.5%', '2000', '0x028f5c28f5c28f5c')
    """
    if value is None:
        return None
    text = value.strip() if isinstance(value, str) else str(value)
    if re.fullmatch("0x[0-9a-fA-F]{16}", text):
        return text.lower()
    share = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,15})?)\s*%", text)
    if share:
        if not 0 < Decimal(share[1]) < 100:
            raise ValueError(f"{text} is not between 0% and 100%; {_RULE}")
        return f"{Decimal(share[1]).normalize():f}%"
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,15}", text) or not int(text):
        raise ValueError(f"{text!r} is neither a share nor a number of samples; {_RULE}")
    return str(int(text))


def bound_of(text: str) -> int | None:
    """Samples with a hash below this are set aside; None for a number of samples, whose bound the samples decide.

    Args:
        text: as `read_validation` gives it.

    >>> bound_of("50%") == 2**63, bound_of("2000")
    (True, None)
    """
    if text.startswith("0x"):
        return int(text, 16)
    return int(Fraction(text[:-1]) * NUM_HASHES / 100) if text.endswith("%") else None


def format_bound(bound: int) -> str:
    """A bound as `read_validation` reads it.

    >>> format_bound(255)
    '0x00000000000000ff'
    """
    return f"{bound:#018x}"
