"""Sends a batch from a worker to the trainer in one run of bytes through the pipe, ids narrowed to 32 bits.

torch puts each tensor of a batch into its own shared memory, and opens a socket to send the descriptor: half a dozen
of these per batch cost far more than its bytes. Here tensors are pickled as arrays. Those that numpy does not know are
pickled as torch does.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from packer_cli.loader.formats.base import Batch


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Say how a tensor is made again, of an array."""
        if type(value) is not torch.Tensor:
            return NotImplemented
        try:
            array = value.numpy()
        except (RuntimeError, TypeError):  # It needs a gradient, or is sparse, elsewhere, or of a type of torch alone.
            return NotImplemented
        dtype = array.dtype
        if dtype == np.int64 and np.array_equal(narrow := array.astype(np.int32), array):
            array = narrow
        return _tensor, (array, dtype)


def _tensor(array: np.ndarray, dtype: np.dtype) -> torch.Tensor:
    """Make a tensor of this array, in its own memory."""
    return torch.from_numpy(array.astype(dtype, order="C"))


def _load(text: bytes) -> Batch:
    return Batch(*pickle.loads(text))


def _reduce(batch: Batch) -> tuple[Any, ...]:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((dict(batch), batch.metadata))
    return _load, (file.getvalue(),)


ForkingPickler.register(Batch, _reduce)
