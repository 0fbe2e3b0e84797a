"""`--max-path-tokens`: the limit on what a varlen kernel gathers for the rows of a set with trees."""

from __future__ import annotations

from packer_cli.sizes import parse_number

_MOST = 10_000
_NONE = 2**31 - 1
"""Percent that no row exceeds."""


def read_limits(text: str | None) -> tuple[int, ...]:
    """Read the limits of rows, see `Plan.limits`, by `--max-path-tokens`; rows of flat samples have none.

    >>> [read_limits(text) for text in ("2x", "1.5x", None)]
    [(100, 200), (100, 150), ()]

    Raises:
        ValueError: the text is another.
    """
    if text is None:
        return ()
    try:
        percent = _NONE if text == "none" else round(100 * parse_number(text.removesuffix("x")))
    except (ValueError, OverflowError):
        percent = 0
    if text != "none" and not (text.endswith("x") and 100 <= percent <= 100 * _MOST):
        raise ValueError(
            f"must be a multiple of the capacity of at least 1x, such as 2x, or none, got {text!r}; a pack has at "
            "least as many path tokens as tokens"
        )
    return (100, percent)


def read_path_tokens(value: object) -> str | None:
    """Return the value as it is kept. Raises ValueError where it is not one."""
    text = None if value is None else str(value).strip().lower()
    read_limits(text)
    return text
