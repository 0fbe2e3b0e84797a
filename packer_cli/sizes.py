"""Numbers as people write them: 16k tokens, 256MiB, 1 shard."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

_DIGITS = "[0-9]{1,100}"
"""ASCII only, and no more than `int` reads."""

_TOKENS = {"": 1, "k": 1024, "m": 1024**2}
_BYTES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

_MANY = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
"""Units of data, whose sizes people give in thousands; packs and steps are powers of two."""


class TokenShare(NamedTuple):
    """Number of tokens that an epoch has of an input."""

    tokens: int

    def __str__(self) -> str:
        """Write it as `parse_share` reads it.

        >>> str(TokenShare(2_000_000_000)), str(TokenShare(1_234))
        ('2Btokens', '1234tokens')
        """
        unit = max((unit for unit in _MANY if self.tokens % _MANY[unit] == 0), key=lambda unit: _MANY[unit])
        return f"{self.tokens // _MANY[unit]}{unit if unit == 'k' else unit.upper()}tokens"


class EpochShare(NamedTuple):
    """Share of an epoch's tokens that an input has."""

    percent: float

    def __str__(self) -> str:
        """Write the share as `parse_share` reads it.

        >>> str(EpochShare(70.0)), str(EpochShare(12.5))
        ('70%', '12.5%')
        """
        return f"{self.percent}".removesuffix(".0") + "%"


Share = float | TokenShare | EpochShare
"""An input's part of an epoch: each sample so many times, a number of tokens, or a part of the epoch's."""


def parse_tokens(text: str) -> int:
    """Read a number of tokens; `k` is 1024.

    >>> parse_tokens("16k"), parse_tokens("4096")
    (16384, 4096)
    """
    return _parse(text, _TOKENS, "tokens", "16384, 16k or 1m")


def parse_bytes(text: str) -> int:
    """Read a number of bytes.

    >>> parse_bytes("256MiB")
    268435456
    """
    return _parse(text, _BYTES, "bytes", "1048576, 256MiB or 1GB")


def parse_seconds(text: str) -> int:
    """Read a duration in seconds.

    >>> parse_seconds("90"), parse_seconds("5m"), parse_seconds("2h")
    (90, 300, 7200)
    """
    return _parse(text, _SECONDS, "seconds", "30s, 5m or 2h")


def parse_integer(text: str) -> int:
    """Read an integer in ASCII digits; `int` takes those of every script, and underscores.

    >>> parse_integer("-12")
    -12
    """
    if not re.fullmatch(f"-?{_DIGITS}", text):
        raise ValueError(f"{text!r} is not an integer; write it in digits, for example 8")
    return int(text)


def parse_number(text: str) -> float:
    """Read a number in ASCII; `float` takes digits of every script, and underscores.

    >>> parse_number("0.5"), parse_number("1e3")
    (0.5, 1000.0)
    """
    try:
        if text.isascii() and "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a number; write it in digits, for example 0.5 or 1e3")


def parse_share(text: str) -> TokenShare | EpochShare:
    """Read a number of tokens of data, where `k`, `M`, `B` and `T` are thousands, millions and so on; or a percentage.

    >>> parse_share("2Btokens").tokens, parse_share("1.5ktokens").tokens, parse_share("12.5%").percent
    (2000000000, 1500, 12.5)
    """
    match = re.fullmatch(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)(?:([kmbt]?)tokens|%)", text, re.IGNORECASE)
    if not match:
        raise ValueError(text)  # The message is the caller's.
    if match[2] is None:
        return EpochShare(float(match[1]))
    return TokenShare(int(Decimal(match[1]) * _MANY[match[2].lower()]))


def parse_limit(text: str) -> tuple[float, str]:
    """Read a limit: a number of records, or a percentage of records (`%`) or of bytes (`%bytes`), with its unit.

    >>> parse_limit("500"), parse_limit("1%"), parse_limit("0.5%bytes")
    ((500.0, ''), (1.0, '%'), (0.5, '%bytes'))
    """
    match = re.fullmatch(r"([0-9]{1,18})|([0-9]{1,3}(?:\.[0-9]{1,9})?)(%|%bytes)", text.lower())
    if not match or float(match[2] or 0) > 100:
        raise ValueError(
            f"{text!r} is not a limit; write a number of records such as 500, 1% of the records, or 1%bytes"
        )
    return float(match[1] or match[2]), match[3] or ""


def format_tokens(tokens: int) -> str:
    """Write a number of tokens as `parse_tokens` reads it.

    >>> format_tokens(131072), format_tokens(5000)
    ('128k', '5000')
    """
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else str(tokens)


def counted(number: int, noun: str) -> str:
    """Write a number of things; the plural takes an s.

    >>> counted(1, "shard"), counted(1200, "shard")
    ('1 shard', '1,200 shards')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(num_bytes: float) -> str:
    """Write a number of bytes for people.

    >>> format_bytes(1536), format_bytes(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    power = next((power for power in (1, 2) if num_bytes < 1024 ** (power + 1)), 3)
    return f"{num_bytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"


def _parse(text: str, units: dict[str, int], what: str, examples: str) -> int:
    match = re.fullmatch(rf"\s*({_DIGITS})\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not a number of {what}; write for example {examples}")
    return int(match[1]) * units[match[2].lower()]


def four_digits(value: float) -> str:
    """Write a number for people: four digits, and all before the point.

    >>> four_digits(0.123456), four_digits(123456.7)
    ('0.1235', '123,457')
    """
    return f"{value:#,.4g}" if value < 1000 else f"{value:,.0f}"


def ratio(value: float) -> str:
    """Format a ratio for a table, with enough digits to compare.

    >>> ratio(0.5), ratio(0.00123), ratio(0)
    ('0.500', '0.0012', '0')
    """
    if not value:
        return "0"
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def amount(value: float) -> str:
    """Format an amount for a table: three significant digits, and all digits before the point.

    >>> amount(0.0123), amount(99.96), amount(12345.6)
    ('0.0123', '100', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def duration(seconds: float) -> str:
    """Format seconds for people.

    >>> duration(0.5), duration(100), duration(9000), duration(1e6)
    ('0.500 s', '100 s', '2.50 h', '11.6 days')
    """
    if seconds < 600:
        return f"{amount(seconds)} s"
    if seconds < 3600:
        return f"{amount(seconds / 60)} min"
    return f"{amount(seconds / 3600)} h" if seconds < 2 * 86400 else f"{amount(seconds / 86400)} days"


def gpu_time(days: float) -> str:
    """Format GPU-days for people.

    >>> gpu_time(2.5), gpu_time(0.02), gpu_time(1e-5)
    ('2.50 GPU-days', '0.480 GPU-hours', '0.864 GPU-seconds')
    """
    if days >= 0.1:
        return f"{amount(days)} GPU-days"
    return f"{amount(24 * days)} GPU-hours" if 24 * days >= 0.1 else f"{amount(86_400 * days)} GPU-seconds"


def large(number: int) -> str:
    """Write a number in thousands, millions or billions.

    >>> large(38_813_459)
    '38.8M'
    """
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{amount(number / unit)}{name}"
    return str(number)
