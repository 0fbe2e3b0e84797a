"""Lines of tokenized records read in columns give what the same lines give one by one: samples, rejects and types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.ragged import join_samples
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers import token_lines
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.corpus.readers.token_lines import read_token_lines
from packer_cli.corpus.records.tokens import COLUMNS
from packer_cli.corpus.types import TokenRows

NUMBERS = st.one_of(
    st.integers(0, 9),
    st.sampled_from([-100, -1, 2**16, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30]),
)
ODD = st.sampled_from([1.0, 1e300, True, False, None, "1", [1], [], {}])
ROWS = st.lists(NUMBERS, max_size=5)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """A line: mostly tokenized records with fitting columns, some with something odd."""
    ids = draw(st.lists(st.integers(0, 9), max_size=5))
    record: dict[str, Any] = {"input_ids": ids}
    if draw(st.booleans()):
        record["labels"] = draw(st.sampled_from([ids, [-100] * len(ids), [-100, *ids[1:]]]))
    if draw(st.booleans()):
        record["loss_mask"] = [draw(st.integers(0, 1)) for _ in ids]
    if not draw(st.integers(0, 9)):
        name = draw(st.sampled_from([*COLUMNS, "text", "source", "input[ids"]))
        record[name] = draw(st.one_of(ROWS, ODD, st.lists(st.one_of(NUMBERS, ODD), max_size=3)))
    items = draw(st.permutations(list(record.items()))) if draw(st.booleans()) else list(record.items())
    if not draw(st.integers(0, 9)):
        items.append(draw(st.sampled_from(items)))
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,", " : ")]))
    parts = (f"{json.dumps(name)}{separators[1]}{json.dumps(value, separators=separators)}" for name, value in items)
    return ("{" + separators[0].join(parts) + "}").encode()


ODD_LINES = st.sampled_from(
    [
        *(b"", b" ", b"\r", b"[1]", b"7", b"{}", b"null", b'{"input_ids": [1, 2'),
        *(b'{"input_ids": [01]}', b'{"input_ids": [1,]}', b'{"input_ids": [NaN]}', b'{"input_ids": [-0, +1]}'),
        *(b'{"input_ids": [-0]}', b'{"input_ids": [1]} {"input_ids": [2]}', b'{"input_ids": [[1]]}'),
        *(b'{"input_ids": [1], "input_ids": [2]}', b'{"\\u0069nput_ids": [1]}', b'{"input_ids": [1]}\r'),
        *(b'\xef\xbb\xbf{"input_ids": [1]}', b' {"input_ids": [1]}', b'{"input_ids": [1], "x": "\xff"}'),
        *(b'{"input_ids": [1], "x": "\\ud800"}', b'{"input_ids": [1]\x0b}', b'{"input_ids": [' + b"1, " * 40 + b"1]}"),
        *(b'{"text": "a"}', b'{"input_ids": [1], "messages": []}', b'{"input_ids": [1.0]}', b'{"input_ids": null}'),
    ]
)
LINES = st.lists(st.one_of(records(), records(), records(), ODD_LINES), min_size=1, max_size=6)


def read(path: Path, schema: Any, slice_bytes: int, batch_bytes: int) -> Iterator[tuple[Any, ...]]:
    """What each slice holds, its arrays as bytes with their types."""
    _, files = discover([str(path)])
    reader = SliceReader(schema=schema, rules=ReadRules(batch_bytes=batch_bytes, max_record_bytes=120))
    for slice_ in slice_corpus(files, slice_bytes=slice_bytes):
        batches = list(reader.read(slice_))
        tokens = [batch.tokens for batch in batches if batch.tokens is not None and len(batch.tokens.lines)]
        arrays = join_samples(tokens) if tokens else ()
        yield (
            [document for batch in batches for document in batch.documents],
            [array if array is None else (array.dtype, array.shape, array.tobytes()) for array in arrays],
            [reject for batch in batches for reject in batch.rejects],
        )


@settings(max_examples=200)
@given(
    st.one_of(LINES, st.lists(st.just(b'{"input_ids": [1, 2], "loss_mask": [0, 1]}'), min_size=1), LINES),
    st.booleans(),
    st.sampled_from(["auto", "tokens", "auto", "tokens", "text"]),
    st.sampled_from([1, 100, 10_000]),
    st.sampled_from([1, 100, 10_000]),
)
def test_lines_in_columns_give_what_they_give_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    has_line_feed: bool,
    schema: Literal["auto", "tokens", "text"],
    slice_bytes: int,
    batch_bytes: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "token-lines.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n" * has_line_feed)
    if not path.stat().st_size:
        return
    with pytest.MonkeyPatch.context() as patch:
        seen: list[TokenRows | None] = []
        patch.setattr(token_lines, "read_token_lines", lambda *of: seen.append(read_token_lines(*of)) or seen[-1])
        found = list(read(path, schema, slice_bytes, batch_bytes))
        event(f"{schema}: {sum(rows is not None for rows in seen)} of {len(seen)} blocks in columns")
        patch.setattr(token_lines, "read_token_lines", lambda *of: None)
        assert found == list(read(path, schema, slice_bytes, batch_bytes))


def test_plain_lines_are_read_in_columns() -> None:
    rows = read_token_lines(
        [b'{"labels": [1, -100], "input_ids": [1, 2]}\n', b'{"input_ids":[3],"labels":[-100]}'], 7, 42
    )
    assert rows is not None
    assert rows.lines.tolist() == [7, 8]
    assert list(rows.columns) == ["input_ids", "labels"]
    offsets, values = rows.columns["labels"]
    assert (offsets.tolist(), values.tolist(), values.dtype) == ([0, 2, 3], [1, -100, -100], np.int64)


@pytest.mark.parametrize(
    "line",
    [
        b'{"input_ids": [1], "labels": [[1]]}',
        b'{"input_ids": [1], "input_ids": [1]}',
        b'{"input_ids": [1], "text": [1]}',
        b'{"labels": [1]}',
    ],
)
def test_other_lines_are_not(line: bytes) -> None:
    assert read_token_lines([line], 1, 100) is None
    assert read_token_lines([b'{"input_ids": [1], "labels": [1]}\n', line], 1, 100) is None
