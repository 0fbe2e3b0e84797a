"""Arrow files, as a packed set has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from packer_cli.files import HashingFile

_BYTES_PER_WRITE = 2**20


@contextmanager
def arrow_file(file: HashingFile, schema: pa.Schema) -> Iterator[pa.RecordBatchWriter]:
    """Write an Arrow IPC file.

    Arrow writes each buffer of a column by itself, and most are short. A call into Python may wait for other threads,
    so short buffers are written together.
    """
    with (
        pa.BufferedOutputStream(pa.PythonFile(file, mode="w"), _BYTES_PER_WRITE) as buffered,
        pa.ipc.new_file(buffered, schema) as writer,
    ):
        yield writer
