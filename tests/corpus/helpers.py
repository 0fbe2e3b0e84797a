"""What the tests of the corpus room share."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.records.token_rows import TokenRecord, read_records
from packer_cli.corpus.types import Document, Reject, TokenBatch

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello ☺"}]}
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello ☺"}]}
ALPACA = {"instruction": "Add.", "input": "1 2", "output": "3"}
PROMPT = {"prompt": "1+2=", "completion": "3"}
TEXT = {"text": "Call me Ishmael.\n"}
TOKENS = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
SHAPES: dict[str, dict[str, Any]] = {
    "messages": CHAT,
    "conversations": SHAREGPT,
    "alpaca": ALPACA,
    "prompt-completion": PROMPT,
    "text": TEXT,
    "tokens": TOKENS,
}


class Sample(NamedTuple):
    """A tokenized sample, its mask written out."""

    kind: str
    line: int
    input_ids: list[int]
    loss_mask: list[int]


def read_all(
    *inputs: object,
    slice_bytes: int | None = None,
    batch_bytes: int = 1 << 20,
    max_record_bytes: int = 1 << 28,
    schema: Any = "auto",
    items: Any = "auto",
    are_single: bool = True,
    **tokenizer: Any,
) -> tuple[list[Any], list[Reject]]:
    """All documents (`Document` or `Sample`) and rejects of the inputs.

    Args:
        are_single: check that each line appears once.
        tokenizer: `vocab_size` and `eos_id`.
    """
    _, files = discover([str(name) for name in inputs])
    documents: list[Any] = []
    rejects: list[Reject] = []
    for slice_ in slice_corpus(files, slice_bytes=slice_bytes):
        assert len(slice_.file.fingerprint) >= 16
        limits = {"batch_bytes": batch_bytes, "max_record_bytes": max_record_bytes}
        for batch in SliceReader(schema=schema, items=items, rules=ReadRules(**limits, **tokenizer)).read(slice_):
            documents += sorted([*batch.documents, *samples(batch.tokens)], key=lambda each: each.line)
            rejects += batch.rejects
    if len(files) == 1 and are_single:
        lines = [entry.line for entry in (*documents, *rejects)]
        assert len(lines) == len(set(lines))
    return documents, rejects


def samples(batch: TokenBatch | None) -> list[Sample]:
    """The samples of a batch, one by one."""
    if batch is None:
        return []
    masks = np.ones(len(batch.input_ids), np.int8) if batch.loss_mask is None else batch.loss_mask
    return [
        Sample("tokens", line, batch.input_ids[start:stop].tolist(), masks[start:stop].tolist())
        for line, (start, stop) in zip(batch.lines.tolist(), pairwise(batch.offsets.tolist()), strict=True)
    ]


def documents_of(record: dict[str, Any]) -> list[Any]:
    """What a record becomes on its own."""
    parsed = Normalizer().parse(record, 1)
    return samples(read_records([parsed])[0]) if isinstance(parsed, TokenRecord) else [parsed]


def plain(document: Any) -> tuple[Any, ...]:
    """A document without its line, arrays as lists."""
    return tuple(value.tolist() if hasattr(value, "tolist") else value for value in document)[:1] + tuple(
        value.tolist() if hasattr(value, "tolist") else value for value in document[2:]
    )


def write_jsonl(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return path


def parse(record: dict, schema: str = "auto") -> Document:
    result = Normalizer(schema).parse(record, 7)
    assert isinstance(result, Document), result
    assert result.line == 7
    return result


def reason(record: dict, schema: str = "auto") -> str:
    result = Normalizer(schema).parse(record, 7)
    assert isinstance(result, Reject), result
    assert result.line == 7
    assert "\n" not in result.reason
    return result.reason
