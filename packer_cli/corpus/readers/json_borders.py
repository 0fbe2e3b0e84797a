"""The kernel that finds where the elements of a JSON array begin and end, without reading them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit

QUOTE, BACKSLASH, COMMA = ord('"'), ord("\\"), ord(",")
OPEN, CLOSE, BRACE = ord("{"), ord("}"), ord("{") - ord("[")
"""With the bit `BRACE` set a square bracket is a curly one."""

CLOSED = -1
"""The depth behind the array."""


@njit(cache=True, nogil=True)
def find_borders(data: NDArray[np.uint8], state: NDArray[np.int64], borders: NDArray[np.int64]) -> int:
    """Find the bracket that opens the array, the commas between its elements, and the bracket that closes it.

    Only strings and brackets are told apart, so that an element that is broken otherwise still ends where it does.
    Price: 0.9 GB/s a core.

    Args:
        data: uint8[n], some bytes of the file.
        state: int64[3], changed: the depth of brackets (0 before the array, 1 between its elements, `CLOSED` behind
            it), whether inside a string, and whether behind a backslash there.
        borders: int64[n], filled: indices into `data`.

    Returns:
        How many borders were found.
    """
    depth, in_string, escaped = state[0], state[1], state[2]
    found = 0
    for i in range(len(data)):
        byte = data[i]
        if in_string:
            if escaped:
                escaped = 0
            elif byte == BACKSLASH:
                escaped = 1
            elif byte == QUOTE:
                in_string = 0
        elif depth == CLOSED:
            break
        elif byte == QUOTE:
            in_string = 1
        elif byte == COMMA or byte | BRACE == OPEN or byte | BRACE == CLOSE:
            opens, closes = byte | BRACE == OPEN, byte | BRACE == CLOSE
            if depth == (0 if opens else 1):
                borders[found] = i
                found += 1
            if opens:
                depth += 1
            elif closes:
                depth = depth - 1 if depth > 1 else CLOSED
    state[0], state[1], state[2] = depth, in_string, escaped
    return found
