"""Plain twin of `packer_cli.tokens.encode.rows.Frame`: one sample at a time."""

from __future__ import annotations


def has_end(ids: list[int], ends: set[int], blanks: set[int]) -> bool:
    """Whether the last token that is not blank is one of `ends`."""
    while ids and ids[-1] in blanks:
        ids = ids[:-1]
    return bool(ids) and ids[-1] in ends


def framed(
    ids: list[int], mask: list[float], *, before: list[int], after: list[int], is_plain: bool, may_close: bool,
    end: float, append_eos: str, eos: int, ends: set[int], blanks: set[int],
) -> tuple[list[int], list[float], bool]:  # fmt: skip
    """(ids, mask, whether it has an end) of one sample with what goes around it."""
    is_ended = has_end(ids, ends, blanks)
    if is_plain:
        mask = [mask[0]] * len(before) + mask + [end] * len(after)
        ids = before + ids + after
        if after:
            is_ended = after[-1] in ends
    if (append_eos == "auto" and may_close and not is_ended) or (append_eos == "always" and ids[-1] != eos):
        return [*ids, eos], [*mask, end], True
    return ids, mask, is_ended
