"""Numbers as people write them."""

from __future__ import annotations

import pytest

from packer_cli.config.groups import parse_group
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.sizes import parse_bytes, parse_integer, parse_number, parse_tokens


@pytest.mark.parametrize("text", ["١٦k", "１６k", "16K\u200b", "²k", "1_6k", "9" * 5000])
def test_only_ascii_digits_are_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of tokens; write for example 16384, 16k or 1m"):
        parse_tokens(text)
    with pytest.raises(ValueError, match="is not a number of bytes"):
        parse_bytes(text)


def test_numbers_are_read() -> None:
    assert (parse_tokens(" 16K "), parse_bytes("2 GiB")) == (16384, 2 * 2**30)


@pytest.mark.parametrize("text", ["٣", "３", "+3", " 3", "1_6", "3.0", "", "-", "--3", "9" * 5000])
def test_only_plain_digits_are_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is not an integer; write it in digits, for example 8"):
        parse_integer(text)
    for group in (f"16k:{text}", f"16k:8:{text}"):
        with pytest.raises(ValueError, match=r"is not CAPACITY\[:SP_DEGREE\[:CHECKPOINT_LAYERS\]\], such as 16k:1"):
            parse_group(group)
    with pytest.raises(ValueError, match=r"balance 'window:.*(needs a number of iterations|known: none)"):
        parse_balance(f"window:{text}")


def test_whole_numbers_are_read() -> None:
    assert (parse_integer("-12"), parse_integer("007")) == (-12, 7)
    assert parse_group("16k:8:3").checkpoint_layers == 3
    assert parse_balance("window:12").window == 12


@pytest.mark.parametrize("text", ["٣", "３.5", "1_6", "0x10", "", "1e", "1,5", "9" * 20 + "x"])
def test_only_ascii_notation_is_a_number(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_number(text)
    assert str(caught.value) == f"{text!r} is not a number; write it in digits, for example 0.5 or 1e3"


def test_numbers_with_a_point_are_read() -> None:
    assert [parse_number(text) for text in ("2", " 2.5", "-.5", "+1E-3")] == [2, 2.5, -0.5, 0.001]
