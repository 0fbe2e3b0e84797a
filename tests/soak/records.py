"""Records as they should not be, and files of them in every format."""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from backports import zstd

from tests.corpus.helpers import SHAPES
from tests.naive.packed_rows import samples_of

ODD_VALUES: list[Any] = [
    None, True, -1, 2**70, 1.5, float("nan"), float("inf"), "", " ", "\u0000", "\ud800", "☺\u2028\x85", "x" * 5000, [],
    [[]], {}, {"role": None}, ["a", None], [1, -2], [2**31], {"a": {"b": []}}, "<|im_end|>",
    [{"role": "user", "content": 3}],
]  # fmt: skip
KEYS = ["text", "messages", "conversations", "prompt", "completion", "input_ids", "labels", "loss_mask", "tools", "é"]
HARMLESS = b"abz :0159.-+eE\t\\u\xc3\xff\x00'"
"""Bytes that end no line, and no element of an array."""


def odd_record(rng: random.Random) -> Any:
    """A record of some shape, as it should be or with something in it exchanged, taken out or put in."""
    record = json.loads(json.dumps(rng.choice(list(SHAPES.values()))))
    while rng.random() < 0.6:
        holder, key = _place(record, rng)
        if holder is None or rng.random() < 0.1:
            return _odd_value(rng)
        if rng.random() < 0.3:
            del holder[key]
        else:
            holder[key] = _odd_value(rng)
        if rng.random() < 0.3 and isinstance(record, dict):
            record[rng.choice(KEYS)] = _odd_value(rng)
    return record


def _odd_value(rng: random.Random) -> Any:
    """One of its own: what is put into a record may be changed there."""
    return deepcopy(rng.choice(ODD_VALUES))


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """Somewhere in a record: a list or an object in it, and a key there."""
    while isinstance(value, (list, dict)) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if not isinstance(value[key], (list, dict)) or rng.random() < 0.3:
            return value, key
        value = value[key]
    return None, None


def odd_text(rng: random.Random) -> bytes:
    """The JSON text of a record, perhaps with a few bytes changed; it is one line, and one element."""
    text = bytearray(json.dumps(odd_record(rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"))
    while rng.random() < 0.4:
        at = rng.randrange(len(text))
        if text[at] not in b'"\\[]{},' and (at == 0 or text[at - 1 : at] != b"\\"):
            text[at] = rng.choice(b"".join(bytes([byte]) for byte in HARMLESS if byte != ord("\\")))
    return bytes(text) if text.strip() else b"0"


def as_lines(texts: list[bytes]) -> bytes:
    return b"\n".join(texts) + b"\n"


def as_array(texts: list[bytes]) -> bytes:
    return b"[" + b",\n".join(texts) + b"]"


TEXTS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}


def write_json(folder: Path, name: str, count: int, rng: random.Random) -> int:
    """A file of JSON lines, or of an array, compressed as its name says; gives the number of its records."""
    texts = [odd_text(rng) for _ in range(count)]
    data = as_array(texts) if ".json." in f"{name}." else as_lines(texts)
    suffix = Path(name).suffix if Path(name).suffix in TEXTS else ""
    (folder / name).write_bytes(TEXTS[suffix](data))
    return count


def write_text(folder: Path, name: str, count: int, rng: random.Random) -> int:
    """A folder of text files."""
    (folder / name).mkdir()
    for number in range(count):
        suffix = rng.choice(["", ".gz", ".zst"])
        text = rng.choice([b"", b" ", b"caf\xe9", b"A text.\n", "☺ text".encode(), b"\x00", odd_text(rng)])
        (folder / name / f"{number}.txt{suffix}").write_bytes(TEXTS[suffix](text))
    return sum(path.stat().st_size > 0 for path in (folder / name).iterdir())


def odd_table(count: int, rng: random.Random) -> pa.Table:
    """Rows of several shapes, many of them bad; text is not always UTF-8."""
    turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    roles, contents = ["user", "assistant", "", None], ["Hi", "", None, "☺", "x" * 3000]

    def some(make: Callable[[], Any]) -> list[Any]:
        return [make() if rng.random() < 0.4 else None for _ in range(count)]

    def turns() -> list[Any]:
        return [{"role": rng.choice(roles), "content": rng.choice(contents)} for _ in range(rng.randrange(4))]

    texts = pa.array(some(lambda: rng.choice([b"text", b"", b"caf\xe9", b"\xed\xa0\x80", b"x" * 9000])), pa.binary())
    ids = pa.array(some(lambda: [rng.randrange(-2, 1100) for _ in range(rng.randrange(5))]), pa.list_(pa.int64()))
    return pa.table({
        "text": pa.StringArray.from_buffers(count, *texts.buffers()[1:], texts.buffers()[0]),
        "messages": pa.array(some(turns), pa.list_(turn)),
        "input_ids": ids,
    })  # fmt: skip


def write_table(folder: Path, name: str, count: int, rng: random.Random) -> int:
    """A Parquet or Arrow file."""
    table, path = odd_table(count, rng), str(folder / name)
    if name.endswith(".parquet"):
        pq.write_table(table, path, row_group_size=max(1, count // 3), compression=rng.choice(["none", "zstd"]))
        return count
    options = pa.ipc.IpcWriteOptions(compression=rng.choice([None, "zstd", "lz4"]))
    make = pa.ipc.new_stream if name.startswith("stream") else pa.ipc.new_file
    with make(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=max(1, count // 3))
    return count


def write_ids(folder: Path, name: str, count: int, rng: random.Random) -> int:
    """A file of token ids, with its index if it has one; some documents are empty, long, or not of the vocabulary."""
    documents = [
        [rng.choice([3, 1023, 1024, 65535]) if rng.random() < 0.01 else 7] * rng.randrange(50) for _ in range(count)
    ]
    if name.endswith(".npy"):
        documents = [[*document, 2] for document in documents]  # EOS of the sample tokenizer.
    ids = np.array([token for document in documents for token in document], "<u2")
    ids.tofile(folder / name)
    lengths = np.array([len(document) for document in documents], "<i4")
    ends = np.cumsum(lengths, dtype="<i8")
    if name.endswith(".ds"):
        (folder / f"{name}.index").write_bytes(ends.tobytes())
    elif name.endswith(".bin"):
        head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, count, count + 1)
        arrays = [lengths, 2 * (ends - lengths), np.arange(count + 1, dtype="<i8")]
        (folder / name).with_suffix(".idx").write_bytes(head + b"".join(each.tobytes() for each in arrays))
    return count


def odd_row(rng: random.Random) -> dict[str, list[int]]:
    """A row of several samples, with every column that tells where they meet; often they contradict each other."""
    lengths = [rng.randrange(1, 9) for _ in range(rng.randrange(5))]
    ids = [rng.randrange(1024) for _ in range(sum(lengths))]
    row = {
        "input_ids": ids,
        "labels": [each if rng.random() < 0.7 else -100 for each in ids],
        "seq_lengths": lengths,
        "position_ids": [place for length in lengths for place in range(length)],
        "attention_mask": [number for number, length in enumerate(lengths, 1) for _ in range(length)],
    }
    if rng.random() < 0.3:
        column = row[rng.choice(list(row))]
        if column and rng.random() < 0.7:
            column[rng.randrange(len(column))] = rng.choice([-1, 0, 1, 2, 7, 2000])
        else:
            column.append(rng.randrange(3))
    return row


def write_packed(folder: Path, name: str, count: int, rng: random.Random) -> int:
    """Rows as TRL and Axolotl pack them, in lines, which may lack columns, or a table; gives samples and bad rows."""
    rows = [odd_row(rng) for _ in range(count)]
    if name.endswith(".jsonl"):
        rows = [{key: row[key] for key in row if key == "input_ids" or rng.random() < 0.6} for row in rows]
        (folder / name).write_bytes(as_lines([json.dumps(row).encode() for row in rows]))
    else:
        table = pa.table({key: pa.array([row[key] for row in rows], pa.list_(pa.int64())) for key in rows[0]})
        with pa.ipc.new_file(str(folder / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=max(1, count // 3))
    return sum(len(samples_of(row) or [None]) for row in rows)


FILES: dict[str, Callable[[Path, str, int, random.Random], int]] = {
    "a.jsonl": write_json,
    "b.json": write_json,
    "c.jsonl.gz": write_json,
    "d.json.zst": write_json,
    "e.parquet": write_table,
    "file.arrow": write_table,
    "stream.arrow": write_table,
    "texts": write_text,
    "ids.bin": write_ids,
    "ids.ds": write_ids,
    "ids.npy": write_ids,
    "packed.jsonl": write_packed,
    "packed.arrow": write_packed,
}


def damage(data: bytes, rng: random.Random) -> bytes:
    """The bytes of a file with a few of them changed, or cut off."""
    damaged = bytearray(data)
    if rng.random() < 0.2:
        del damaged[rng.randrange(len(damaged)) :]
    for _ in range(rng.choice([1, 1, 3, 20]) if damaged else 0):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)
