"""One JSON text to a record, and its errors in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer_cli.corpus.records.base import type_name

if TYPE_CHECKING:
    import orjson

BOM = b"\xef\xbb\xbf"
JSON_SPACE = b" \t\r\n"


def why_not_json(text: bytes, what: str) -> str:
    """The reason to reject `text`, which orjson refuses; `what` is "line" or "element"."""
    error = _error(text)
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as bad:
        return f"invalid UTF-8: byte 0x{text[bad.start]:02x} at offset {bad.start} of the {what}"
    at = error.pos
    for word in ("-Infinity", "Infinity", "NaN"):
        # orjson points behind a sign
        if decoded.startswith(word, at) or (word[0] == "-" and decoded.startswith(word, max(at - 1, 0))):
            return f"broken JSON: {word} at column {at + 1} is not a JSON value"
    if "surrogate" in error.msg:
        return f"broken JSON: half of a surrogate pair at column {at + 1}"
    return f"broken JSON: {error.msg} at column {at + 1}"


def _error(text: bytes) -> orjson.JSONDecodeError:
    import orjson

    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error
    raise AssertionError("this is JSON")


def why_not_object(value: object) -> str:
    """Why a JSON value that is not an object is rejected."""
    return f"a record must be a JSON object, this is {type_name(value)}"
