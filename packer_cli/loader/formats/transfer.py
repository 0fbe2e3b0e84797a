"""Sends a batch from a worker to the trainer: all its tensors in one run of bytes, ids narrowed to 32 bits.

torch puts each tensor of a batch into its own shared memory, and opens a socket to send the descriptor: half a dozen
of these per batch cost far more than its bytes. This module sends the bytes through the pipe, or, if there are many,
through one block of shared memory. Batches with tensors that numpy does not know are sent by torch.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from packer_cli.loader.formats.base import Batch
from packer_cli.loader.pages import PAGES

MOST_BYTES = 2**19
"""Most bytes to send through the pipe."""
_DTYPES = (torch.int64, torch.int32, torch.float32)
_ALIGN = 8


class _NotPlainError(Exception):
    """A tensor that torch has to send."""


class _Pickler(pickle.Pickler):
    """Collects the tensors instead of pickling them; a tensor under two names is collected once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.arrays: list[np.ndarray] = []
        self.num_bytes = 0
        self._places: dict[int, tuple[int, str, tuple[int, ...], bool]] = {}

    def persistent_id(self, value: Any) -> Any:
        """None, or the place of a tensor: (first byte, dtype, shape, whether it was narrowed)."""
        if type(value) is not torch.Tensor:
            return None
        place = self._places.get(id(value))
        if place is None:
            if not _is_plain(value):
                raise _NotPlainError
            array, is_narrow = np.ascontiguousarray(value.numpy()).ravel(), False
            if array.dtype == np.int64:
                narrow = array.astype(np.int32)
                if is_narrow := np.array_equal(narrow, array):
                    array = narrow
            place = self._places[id(value)] = (self.num_bytes, array.dtype.str, tuple(value.shape), is_narrow)
            self.arrays.append(array)
            self.num_bytes += -(-array.nbytes // _ALIGN) * _ALIGN
        return place

    def fill(self, out: np.ndarray) -> None:
        """Write the tensors into `out`, uint8 [num_bytes]."""
        at = 0
        for array in self.arrays:
            out[at : at + array.nbytes].view(array.dtype)[:] = array
            at += -(-array.nbytes // _ALIGN) * _ALIGN


class _Unpickler(pickle.Unpickler):
    """Restores the tensors from their bytes, each in its own memory."""

    def __init__(self, text: bytes, data: np.ndarray) -> None:
        super().__init__(io.BytesIO(text))
        self._data = data
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, place: Any) -> torch.Tensor:
        """The tensor at a place."""
        at, dtype, shape, is_narrow = place
        count = int(np.prod(shape))
        if not count:  # An empty tensor has no bytes, and so begins at the same byte as another.
            return torch.from_numpy(np.empty(shape, dtype=np.int64 if is_narrow else dtype))
        if at not in self._tensors:
            array = np.frombuffer(self._data, dtype=dtype, count=count, offset=at)
            made = PAGES.take(count) if is_narrow else np.empty(count, dtype=dtype)
            made[:] = array
            self._tensors[at] = torch.from_numpy(made.reshape(shape))
        return self._tensors[at]


def _is_plain(value: torch.Tensor) -> bool:
    known = value.device.type == "cpu" and value.layout == torch.strided and value.dtype in _DTYPES
    return known and not value.requires_grad and not value.is_neg()


def _load(text: bytes, data: bytes | torch.Tensor) -> Batch:
    array = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data.numpy()
    return Batch(*_Unpickler(text, array).load())


def _reduce(batch: Batch) -> tuple[Any, ...]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump((dict(batch), batch.metadata))
    except _NotPlainError:
        return batch.__reduce__()
    if pickler.num_bytes <= MOST_BYTES:
        out = np.empty(pickler.num_bytes, dtype=np.uint8)
        pickler.fill(out)
        return _load, (file.getvalue(), out.tobytes())
    storage = torch.UntypedStorage._new_shared(pickler.num_bytes)
    shared = torch.empty(0, dtype=torch.uint8).set_(storage)
    pickler.fill(shared.numpy())
    return _load, (file.getvalue(), shared)


ForkingPickler.register(Batch, _reduce)
