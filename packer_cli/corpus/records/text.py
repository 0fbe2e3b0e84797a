"""Plain text: `{"text": "..."}`, or `content` where there is no `text`."""

from __future__ import annotations

from packer_cli.corpus.records.base import BadRecordError, Shape, read_string
from packer_cli.corpus.records.weights import WEIGHTS, read_weight
from packer_cli.corpus.types import Document, Record


def parse(record: Record, line: int) -> Document:
    """Read one text record; text of white space alone is rejected."""
    text = read_string(record, "text" if "text" in record else "content")
    # isspace alone: a strip would copy every long text.
    if not text or text.isspace():
        raise BadRecordError("empty text")
    return Document("text", line, text, weight=read_weight(record, names=WEIGHTS))


SHAPE = Shape((("text",), ("content",)), ("role", *WEIGHTS), parse)
