"""`--validation`: the number of samples that are set aside, as users write it and as a bound on samples' hashes."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

NUM_HASHES = 2**64
"""Number of hashes: each is a number below this."""

_RULE = (
    "write a share of the samples, such as 1%, a number of samples, such as 2000 or 2k, 0 for none, or the bound that "
    "hbpack.json notes, such as 0x028f5c28f5c28f5c"
)
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6}


def read_validation(value: Any) -> str | None:
    """Write the value in one form, so that equal choices are equal text; None for none.

    Raises:
        ValueError: the value is neither a share, nor a number, nor a bound as `format_bound` writes it.

    >>> read_validation("0.50%"), read_validation("2k"), read_validation("0x028F5C28F5C28F5C")
    ('0.5%', '2000', '0x028f5c28f5c28f5c')
    """
    if value is None or str(value).strip() in ("0", "0%"):
        return None
    text = value.strip() if isinstance(value, str) else str(value)
    if re.fullmatch("0x[0-9a-fA-F]{16}", text):
        return text.lower()
    share = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,15})?)\s*%", text)
    if share:
        if not 0 < Decimal(share[1]) < 100:
            raise ValueError(f"{text} is not between 0% and 100%; {_RULE}")
        return f"{Decimal(share[1]).normalize():f}%"
    number = re.fullmatch("([0-9]{1,15})([kKmM]?)", text)
    if isinstance(value, bool) or number is None or not int(number[1]):
        raise ValueError(f"{text!r} is neither a share nor a number of samples; {_RULE}")
    return str(int(number[1]) * _THOUSANDS[number[2].lower()])


def bound_of(text: str) -> int | None:
    """Return the bound: samples with a hash below it are set aside. None for a number, whose bound the samples decide.

    Args:
        text: the result of `read_validation`.

    >>> bound_of("50%") == 2**63, bound_of("2000")
    (True, None)
    """
    if text.startswith("0x"):
        return int(text, 16)
    return int(Fraction(text[:-1]) * NUM_HASHES / 100) if text.endswith("%") else None


def format_bound(bound: int) -> str:
    """Write a bound as `read_validation` reads it.

    >>> format_bound(255)
    '0x00000000000000ff'
    """
    return f"{bound:#018x}"
