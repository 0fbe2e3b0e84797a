"""Lengths from a `.npy` or text file, or from an array."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from packer_cli.errors import InputError
from packer_cli.plan.core.types import Int32Array
from packer_cli.remote.local import local_file

_RULE = "a length is 1 .. 2147483647; correct it, or leave it out"
_CHECK = "check the file and its permissions"
_SAVE = "save one array with numpy.save, or name text with one integer a line"


def read_lengths_file(path: Path) -> Int32Array:
    """Lengths (int32[n]) from a `.npy` of integers, or a text file with one integer per line.

    Raises:
        InputError: the file cannot be read, is empty, or holds a value outside 1 .. 2^31 - 1, the first of which is
            named.
    """
    try:
        values = np.load(local_file(path), allow_pickle=False) if path.suffix == ".npy" else _read_text(path)
    except OSError as error:
        raise InputError(f"lengths file {str(path)!r} cannot be read: {error.strerror or error}; {_CHECK}") from None
    except (ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"lengths file {str(path)!r} is not a .npy of integers: {error}; {_SAVE}") from None
    if not isinstance(values, np.ndarray):
        raise InputError(f"lengths file {str(path)!r} is an archive of arrays (.npz); {_SAVE}")
    lengths = checked_lengths(values, f"lengths file {str(path)!r}")
    if not len(lengths):
        raise InputError(f"lengths file {str(path)!r} is empty; {_SAVE}")
    return lengths


def checked_lengths(values: np.ndarray, name: str) -> Int32Array:
    """A copy of lengths, int32[n].

    Args:
        name: for messages.

    Raises:
        InputError: they are not one row of integers of 1 .. 2^31 - 1. Names the first bad value.
    """
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(
            f"{name} must hold one row of integers, got {values.dtype} of shape {values.shape}; give the tokens of "
            "each sample, such as numpy.array([512, 80])"
        )
    wrong = np.flatnonzero((values < 1) | (values >= 2**31))
    if len(wrong):
        raise InputError(f"{name}: value {wrong[0] + 1} is {values[wrong[0]]}; {_RULE}")
    return values.astype(np.int32)


def _read_text(path: Path) -> np.ndarray:
    data = path.read_bytes()
    if data.startswith(b"PK\x03\x04"):
        raise InputError(f"lengths file {str(path)!r} is an archive of arrays (.npz); {_SAVE}")
    lines = data.removeprefix(codecs.BOM_UTF8).split()
    try:
        return np.array(lines, dtype=np.int64) if lines else np.zeros(0, dtype=np.int64)
    except (ValueError, OverflowError):
        number = next(i for i, line in enumerate(lines) if not _fits(line))
        text = lines[number].decode("utf-8", "replace")[:40]
        what = (
            f"{text}; {_RULE}"
            if re.fullmatch(rb"[+-]?[0-9]+", lines[number])
            else f"{text!r}; write one integer a line"
        )
        raise InputError(f"lengths file {str(path)!r}: value {number + 1} is {what}") from None


def _fits(text: bytes) -> bool:
    """Whether numpy reads it as a 64-bit integer."""
    try:
        np.array([text], dtype=np.int64)
    except (ValueError, OverflowError):
        return False
    return True
