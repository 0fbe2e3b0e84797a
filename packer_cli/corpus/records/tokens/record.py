"""Tokenized records as dicts: found by their ids, and read many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from packer_cli.corpus.ragged import join_arrays, join_samples
from packer_cli.corpus.records.base import BadRecordError, Record, Shape
from packer_cli.corpus.records.tokens.columns import COLUMNS, IDS, integers
from packer_cli.corpus.records.tokens.rows import read_rows
from packer_cli.corpus.records.weights import WEIGHT, read_weight
from packer_cli.corpus.types import Reject, TokenBatch, TokenRows

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TokenRecord(NamedTuple):
    """A tokenized record, to be read with others by `read_records`."""

    line: int
    record: Record


def parse(record: Record, line: int) -> TokenRecord | Reject:
    """The record itself, unless it has no ids."""
    if record[IDS] is None:
        return Reject(line, f'"{IDS}" must be an array of integers, this is null')
    return TokenRecord(line, record)


SHAPE = Shape(((IDS,),), (*COLUMNS[1:], WEIGHT), parse)


def read_records(records: Sequence[TokenRecord]) -> tuple[TokenBatch | None, list[Reject]]:
    """The samples and rejects of records whose columns are lists of Python integers, or arrays."""
    import numpy as np

    rejects: list[Reject] = []
    weights: dict[int, float] = {}
    by_columns: dict[tuple[str, ...], tuple[list[int], list[list[NDArray[Any]]]]] = {}
    for line, record in records:
        names = tuple(name for name in COLUMNS if record.get(name) is not None)
        try:
            arrays = [integers(record[name], name) for name in names]
            if WEIGHT in record:
                weights[line] = read_weight(record)
        except BadRecordError as error:
            rejects.append(Reject(line, str(error)))
            continue
        lines, rows = by_columns.setdefault(names, ([], []))
        lines.append(line)
        rows.append(arrays)
    batches: list[TokenBatch] = []
    for names, (lines, rows) in by_columns.items():
        columns = {name: join_arrays([row[i] for row in rows]) for i, name in enumerate(names)}
        batch, refused = read_rows(TokenRows(np.array(lines, dtype=np.int64), columns))
        batches.append(_with_weights(batch, weights) if weights else batch)
        rejects += refused
    return (join_samples(batches) if batches else None), rejects


def _with_weights(batch: TokenBatch, weights: dict[int, float]) -> TokenBatch:
    """The samples with the weights of their lines in the loss, which are 1 unless given."""
    import numpy as np

    weight = np.array([weights.get(line, 1.0) for line in batch.lines.tolist()], dtype=np.float32)
    if (weight == 1).all():
        return batch
    of_token = np.repeat(weight, np.diff(batch.offsets))
    mask = of_token if batch.loss_mask is None else of_token * batch.loss_mask
    is_mask = ((weight == 0) | (weight == 1)).all()
    return batch._replace(loss_mask=mask > 0 if is_mask else mask, weight=weight)
