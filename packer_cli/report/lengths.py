"""Lengths from wherever a user has them: a packed set, a token store, `.npy`, or text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from packer_cli.errors import InputError
from packer_cli.plan.types import Int32Array


def read_lengths_file(path: Path) -> Int32Array:
    """Lengths (int32[n]) from a `.npy` of integers, or a text file with one integer a line.

    Raises:
        InputError: naming the first bad line or value; a length must be 1 .. 2^31 - 1.
    """
    try:
        values = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _read_text(path)
    except OSError as error:
        raise InputError(f"lengths file {str(path)!r} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"lengths file {str(path)!r} is not a .npy of integers: {error}") from None
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(f"lengths file {str(path)!r} must hold one row of integers, has {values.dtype}{values.shape}")
    wrong = np.flatnonzero((values < 1) | (values >= 2**31))
    if len(wrong):
        raise InputError(
            f"lengths file {str(path)!r}: value {wrong[0] + 1} is {values[wrong[0]]}; a length is 1 .. 2147483647"
        )
    return values.astype(np.int32)


def _read_text(path: Path) -> np.ndarray:
    lines = path.read_bytes().split()
    try:
        return np.array(lines, dtype=np.int64) if lines else np.zeros(0, dtype=np.int64)
    except (ValueError, OverflowError):
        number = next(i for i, line in enumerate(lines) if not line.lstrip(b"-").isdigit())
        text = lines[number].decode("utf-8", "replace")[:40]
        raise InputError(f"lengths file {str(path)!r}: value {number + 1} is {text!r}, not an integer") from None
