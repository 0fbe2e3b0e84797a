"""Corpora of each kind of record, made from the shared ones: JSONL of about `CORPUS_BYTES` each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORPUS_BYTES = {
    "chats": 400_000_000,
    "alpaca": 40_000_000,
    "prompt-completion": 40_000_000,
    "texts": 40_000_000,
    "tokens": 400_000_000,
}
"""Of chats and tokens, the usual way has little to do, and hbpack less: with less, both would mostly start up."""

Record = dict[str, Any]


def make_corpus(kind: str, data: Path, folder: Path, tokenizer: Path) -> Path:
    """A JSONL file of records of one kind in `folder`, written unless it exists.

    Args:
        data: the folder of the shared corpora.
        tokenizer: for records of kind `tokens`.
    """
    path = folder / (f"tokens-{tokenizer.name}.jsonl" if kind == "tokens" else f"{kind}.jsonl")
    if not path.exists():
        makers = {
            "chats": _numbered_chats,
            "alpaca": _alpaca,
            "prompt-completion": _prompt_completion,
            "texts": _texts,
        }
        records = _tokens(data, tokenizer) if kind == "tokens" else makers[kind](data)
        size = 0
        with path.open("w", encoding="utf-8") as file:
            for record in records:
                size += file.write(json.dumps(record, ensure_ascii=False) + "\n")
                if size > CORPUS_BYTES[kind]:
                    break
    return path


def _numbered_chats(data: Path) -> Iterator[Record]:
    """The shared chats, repeated; each one's first question is numbered, so that no two are equal."""
    known = _chats(data)
    for turn in itertools.count(1):
        for number, record in enumerate(known):
            messages = [dict(message) for message in record["messages"]]
            first = next((message for message in messages if message["role"] == "user"), messages[0])
            first["content"] = f"Conversation {turn}.{number}. {first['content']}"
            yield {**record, "messages": messages}


def _alpaca(data: Path) -> Iterator[Record]:
    """Questions and answers of gsm8k and bbh, repeated and numbered so that no two are equal. Half have an input."""
    known = [record for record in _chats(data) if record["source"] in ("gsm8k", "bbh")]
    for turn in itertools.count(1):
        for number, record in enumerate(known):
            question, answer = (message["content"] for message in record["messages"][:2])
            title = f"Exercise {turn}.{number}"
            if number % 2:
                yield {"instruction": f"{title}. Solve this.", "input": question, "output": answer}
            else:
                yield {"instruction": f"{title}. {question}", "input": "", "output": answer}


def _prompt_completion(data: Path) -> Iterator[Record]:
    """Each paragraph of the long documents with the next one."""
    for text in _documents(data):
        paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]
        for prompt, completion in zip(paragraphs[::2], paragraphs[1::2], strict=False):
            yield {"prompt": prompt + "\n\n", "completion": completion}


def _texts(data: Path) -> Iterator[Record]:
    """The long documents."""
    for text in _documents(data):
        yield {"text": text}


def _tokens(data: Path, folder: Path) -> Iterator[Record]:
    """The long documents, repeated and numbered, tokenized, in samples of at most 4,096 tokens."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known = [np.array(tokenizer.encode(text).ids, np.int32) for text in _documents(data)]
    for turn in itertools.count(1):
        for number, ids in enumerate(known):
            for begin in range(0, len(ids), 4000):
                title = tokenizer.encode(f"Document {turn}.{number}, from {begin}. ").ids
                yield {"input_ids": title + ids[begin : begin + 4000].tolist()}


def _chats(data: Path) -> list[Record]:
    with (data / "sft_messages.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _documents(data: Path) -> Iterator[str]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(data / "long_docs.parquet").iter_batches(columns=["text"]):
        yield from batch["text"].to_pylist()
