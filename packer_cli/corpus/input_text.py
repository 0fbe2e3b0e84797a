"""An input as the user writes it: a path, and perhaps a weight."""

from __future__ import annotations

import math
import os

from packer_cli.errors import ConfigError
from packer_cli.sizes import EpochShare, Share, TokenShare, parse_number, parse_share

MOST_WEIGHT = 10**6
"""Far above any use: a source that an epoch repeats more often is a slip of the pen, such as 1e12."""
MOST_TOKENS = 2**62


def parse_input(text: str) -> tuple[str, Share]:
    """Split "PATH@2.0", "PATH@2Btokens" or "PATH@70%" into the path and its weight, 1.0 without one.

    A path that exists as it stands wins over the reading as a weight. Raises ConfigError when the weight
    is not a number above 0 and up to `MOST_WEIGHT`, or of tokens, or a percentage.
    """
    name, at, tail = text.rpartition("@")
    if not at or os.path.exists(text):
        return text, 1.0
    weight: Share
    try:
        weight = parse_share(tail) if tail.lower().endswith(("tokens", "%")) else parse_number(tail)
    except ValueError:
        if not os.path.exists(name):
            return text, 1.0  # an "@" somewhere in a name; what it is, discover finds out
        raise ConfigError(
            f"{text}: the weight {tail!r} is not a number; write {name}@2.0, {name}@500Mtokens or {name}@70%"
        ) from None
    if not name:
        raise ConfigError(f"{text}: there is no path before the weight; write PATH@{tail}")
    if isinstance(weight, EpochShare):
        if not 0 < weight.percent <= 100:
            raise ConfigError(f"{text}: the share must be above 0 % and at most 100 %; leave out an input of none")
        return name, weight
    if isinstance(weight, TokenShare):
        if not 0 < weight.tokens <= MOST_TOKENS:
            raise ConfigError(f"{text}: the number of tokens must be from 1 to 2^62; leave out an input of none")
        return name, weight
    if not (weight > 0 and math.isfinite(weight)):
        raise ConfigError(f"{text}: the weight must be above 0 and finite; leave out an input of no weight")
    if weight > MOST_WEIGHT:
        raise ConfigError(
            f"{text}: the weight must be at most {MOST_WEIGHT}, as each epoch holds a sample that often; "
            "give a smaller one, or more epochs"
        )
    return name, weight
