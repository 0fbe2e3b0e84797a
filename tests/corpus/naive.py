"""Plain twins of the readers: the whole file at once, the standard json module, one obvious loop."""

from __future__ import annotations

import json
from typing import Any


def _refuse(word: str) -> Any:
    raise ValueError(word)


def read_jsonl(data: bytes) -> tuple[list[tuple[int, dict]], list[int]]:
    """(line, record) of the good lines, and the line numbers of the bad ones."""
    good, bad = [], []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"), parse_constant=_refuse)
            json.dumps(record, ensure_ascii=False).encode("utf-8")  # lone surrogates
            assert isinstance(record, dict)
        except (ValueError, AssertionError):
            bad.append(number)
        else:
            good.append((number, record))
    return good, bad


def without_nulls(value: Any, are_messages: bool = True) -> Any:
    """A value without the null keys of its objects, at any depth; `content` of messages keeps its null."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):  # A map.
        value = dict(value)
    if isinstance(value, dict):
        kept = "content" if are_messages and "role" in value else None
        return {key: without_nulls(v, False) for key, v in value.items() if v is not None or key == kept}
    return [without_nulls(entry, are_messages) for entry in value] if isinstance(value, list) else value


def array_borders(text: bytes) -> list[int]:
    """Offsets of the brackets of an array and of the commas between its elements, by the standard decoder."""
    decoder, decoded = json.JSONDecoder(), text.decode()
    at = decoded.index("[")
    borders = [at]
    while decoded[at] != "]":
        begin = len(decoded) - len(decoded[at + 1 :].lstrip())
        at = begin if decoded[begin] == "]" else decoder.raw_decode(decoded, begin)[1]
        at = len(decoded) - len(decoded[at:].lstrip())
        borders.append(at)
    return [len(decoded[:border].encode()) for border in borders]
