"""`--loss-on`: which turns of the assistant carry a loss, and which parts of them."""

from __future__ import annotations

_WHOLE = ("completion", "all")
_TURNS = ("last-turn",)
_PARTS = ("reasoning", "no-reasoning", "tool-calls")


def read_loss_on(value: str) -> str:
    """The value with its parts in a fixed order, so that equal choices are equal text.

    Raises:
        ValueError: a part is unknown, or the parts do not go together.

    >>> read_loss_on("reasoning+last-turn")
    'last-turn+reasoning'
    """
    names = {name.strip() for name in value.split("+")}
    known = (*_WHOLE, *_TURNS, *_PARTS)
    for name in sorted(names.difference(known)):
        raise ValueError(f"must be one of {', '.join(known)}, or some of the last four joined by +, got {name!r}")
    if len(names) > 1:
        for name in names.intersection(_WHOLE):
            raise ValueError(f"{name!r} cannot be combined with others, got {value!r}")
    if "no-reasoning" in names and names.intersection(_PARTS) != {"no-reasoning"}:
        raise ValueError(f"'no-reasoning' already is all but the reasoning; leave out one of the two, got {value!r}")
    return "+".join(name for name in known if name in names)
