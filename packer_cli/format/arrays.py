"""Between numpy and Arrow without a copy, and without pyarrow's own way, which imports pandas (0.2 s) to do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.ragged import Lists as Lists


def list_of(item: pa.DataType) -> pa.DataType:
    """Make the type of lists of items, none of them null."""
    return pa.list_(pa.field("item", item, nullable=False))


def to_arrow(values: NDArray[Any] | Lists) -> pa.Array:
    """Make an Arrow array of a column of numbers or lists; both see the same memory.

    >>> to_arrow(np.array([1, 2], dtype=np.int32)).to_pylist()
    [1, 2]
    """
    if isinstance(values, Lists):
        items = to_arrow(values.values)
        return pa.ListArray.from_arrays(to_arrow(values.offsets.astype(np.int32)), items, type=list_of(items.type))
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


Columns = dict[str, Any]
"""The columns of a record batch by their names: numbers [r], or `Lists`, with offsets of int32."""
Row = dict[str, Any]
"""The values of a row by the names of its columns: numbers, and arrays of lists."""


def columns_of(batch: pa.RecordBatch) -> Columns:
    """Make views of the columns of a record batch, without nulls; texts, which are of records, are left out."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return {
        name: Lists(to_numpy(column.offsets), to_numpy(column.values))
        if pa.types.is_list(column.type)
        else to_numpy(column)
        for name, column in columns.items()
        if not pa.types.is_string(column.type)
    }


def to_batch(columns: Columns, schema: pa.Schema) -> pa.RecordBatch:
    """Make a record batch of the columns that a schema names."""
    made = [each if isinstance(each := columns[name], pa.Array) else to_arrow(each) for name in schema.names]
    return pa.record_batch(made, schema=schema)


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Find the dtype of a type of numbers, or of lists of them.

    >>> dtype_of(pa.float32())
    dtype('float32')
    """
    name = str(kind.value_type if pa.types.is_list(kind) else kind)
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))


def to_numpy(values: pa.Array) -> NDArray[Any]:
    """Make a view of an Arrow array of numbers without nulls.

    >>> to_numpy(pa.array([1, 2, 3], pa.int16())[1:]).tolist()
    [2, 3]
    """
    dtype = dtype_of(values.type)
    if not len(values):
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(values.buffers()[1], dtype=dtype, count=len(values), offset=values.offset * dtype.itemsize)
