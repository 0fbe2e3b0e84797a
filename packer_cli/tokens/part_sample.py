"""The making of a part in memory, of a sample of an input: what a prediction measures."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.engine.sink import MemorySink
from packer_cli.tokens.index import PartInfo
from packer_cli.tokens.part import PartTask, tokenize_part


class PartSample(NamedTuple):
    """A part that was made of a sample of an input, and thrown away."""

    part: PartInfo
    lengths: NDArray[np.int32]
    """int32[n]: tokens of each sample."""
    seconds: float
    """Time that it took, without what a process does once."""
    memory: int
    """Most bytes that the process has held."""


def tokenize_sample(task: PartTask) -> PartSample:
    """Tokenize the slices of a sample in memory.

    Price: that of a part, and of its first slice once more, by which the tokenizer is loaded and the template learned.
    """
    tokenize_part(replace(task, slices=task.slices[:1]), MemorySink())
    sink, begun = MemorySink(), time.perf_counter()
    part = tokenize_part(task, sink).part
    seconds = time.perf_counter() - begun
    ids = pa.ipc.open_file(sink.contents[part.path].getbuffer()).read_all()["input_ids"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    lengths = np.concatenate([np.zeros(0, np.int32), *(np.diff(chunk.offsets) for chunk in ids.chunks)])
    return PartSample(part, lengths, seconds, memory)
