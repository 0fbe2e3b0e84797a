"""Numbers as people write them."""

from __future__ import annotations

import pytest

from packer_cli.sizes import parse_bytes, parse_tokens


@pytest.mark.parametrize("text", ["١٦k", "１６k", "16K\u200b", "²k", "1_6k"])
def test_only_ascii_digits_are_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of tokens; write for example 16384, 16k or 1m"):
        parse_tokens(text)
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_bytes(text)


def test_numbers_are_read() -> None:
    assert (parse_tokens(" 16K "), parse_bytes("2 GiB")) == (16384, 2 * 2**30)
