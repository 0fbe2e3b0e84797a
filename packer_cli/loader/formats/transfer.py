"""Sends a batch from a worker to the trainer: all its tensors in one run of bytes, ids narrowed to 32 bits.

torch puts each tensor of a batch into its own shared memory, and opens a socket to send the descriptor: half a dozen
of these per batch cost far more than its bytes. This module sends the bytes through the pipe, or, if there are many,
through one block of shared memory. Tensors that numpy does not know are pickled as torch does.
"""

from __future__ import annotations

import io
import pickle
from itertools import accumulate, pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from packer_cli.loader.formats.base import Batch

MOST_BYTES = 2**19
"""Most bytes to send through the pipe."""


class _Pickler(pickle.Pickler):
    """Collects the bytes of tensors instead of pickling them; a tensor under two names is collected once."""

    def __init__(self, file: io.BytesIO) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=self.buffers.append)

    def reducer_override(self, value: Any) -> Any:
        """Say how a tensor is made again, of its bytes."""
        if type(value) is not torch.Tensor:
            return NotImplemented
        try:
            array, is_narrow = np.ascontiguousarray(value.numpy()), False
        except (RuntimeError, TypeError):  # It needs a gradient, or is sparse, elsewhere, or of a type of torch alone.
            return NotImplemented
        if array.dtype == np.int64:
            narrow = array.astype(np.int32)
            if is_narrow := np.array_equal(narrow, array):
                array = narrow
        return _tensor, (pickle.PickleBuffer(array.data), array.dtype.str, tuple(value.shape), is_narrow)


def _tensor(data: Any, dtype: str, shape: tuple[int, ...], is_narrow: bool) -> torch.Tensor:
    """Make a tensor of these bytes, in its own memory."""
    array = np.frombuffer(data, dtype=dtype)
    made = array.astype(np.int64 if is_narrow else array.dtype)
    return torch.from_numpy(made.reshape(shape))


def _load(text: bytes, data: bytes | torch.Tensor, sizes: list[int]) -> Batch:
    whole = memoryview(data) if isinstance(data, bytes) else data.numpy().data
    parts = [whole[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]
    return Batch(*pickle.loads(text, buffers=parts))


def _reduce(batch: Batch) -> tuple[Any, ...]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump((dict(batch), batch.metadata))
    parts = [buffer.raw() for buffer in pickler.buffers]
    sizes = [part.nbytes for part in parts]
    if sum(sizes) <= MOST_BYTES:
        return _load, (file.getvalue(), b"".join(parts), sizes)
    shared = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(sum(sizes)))
    np.concatenate(parts, out=shared.numpy())
    return _load, (file.getvalue(), shared, sizes)


ForkingPickler.register(Batch, _reduce)
