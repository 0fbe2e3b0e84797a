"""`--max-path-tokens`: the limit on what a varlen kernel gathers for the rows of a set with trees."""

from __future__ import annotations

from packer_cli.sizes import parse_number

_MOST = 10_000


def parse_path_tokens(text: str | None) -> int | None:
    """`--max-path-tokens` in percent of the capacity; 0: no limit; None: samples are flat.

    >>> [parse_path_tokens(text) for text in ("2x", "1.5x", "none", None)]
    [200, 150, 0, None]

    Raises:
        ValueError: anything else.
    """
    if text is None or text == "none":
        return 0 if text else None
    try:
        percent = round(100 * parse_number(text.removesuffix("x")))
    except (ValueError, OverflowError):
        percent = 0
    if not text.endswith("x") or not 100 <= percent <= 100 * _MOST:
        raise ValueError(
            f"must be a multiple of the capacity of at least 1x, such as 2x, or none, got {text!r}; a pack has at "
            "least as many path tokens as tokens"
        )
    return percent


def read_path_tokens(value: object) -> str | None:
    """The value as it is kept. Raises ValueError where it is not one."""
    text = None if value is None else str(value).strip().lower()
    parse_path_tokens(text)
    return text
