"""Decoding by runs: no character is lost, torn or given to the wrong run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from packer_cli.show.decode import CONTEXT, decode_parts, decode_runs, mask_borders, shorten
from tests.conftest import ROOT

BYTE_LEVEL = Tokenizer.from_file(str(ROOT / "examples" / "sample" / "tokenizer" / "tokenizer.json"))

TEXTS = st.text(
    st.sampled_from("ab \n.éß中文字日本語😀🇩🇪👩\u200d🚀क्षि\u0301\x00\x1b") | st.characters(exclude_categories=("Cs",)),
    max_size=60,
) | st.lists(st.sampled_from(["<|start|>", "<|end|>", "user\n", "中", " the", "😀"]), max_size=20).map("".join)


def byte_level_decode(ids):
    return BYTE_LEVEL.decode(ids, skip_special_tokens=False)


def bytes_of_token(number):
    """By GPT-2's table of bytes, made here anew."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return bytes(table[char] for char in BYTE_LEVEL.id_to_token(number))


def texts_by_bytes(ids, borders):
    """Each character in the run that holds its last byte."""
    ends = np.cumsum([0, *(len(bytes_of_token(number)) for number in ids)])
    texts = [""] * (len(borders) - 1)
    place = 0
    for char in b"".join(map(bytes_of_token, ids)).decode():
        place += len(char.encode())
        token = int(np.searchsorted(ends, place)) - 1
        texts[int(np.searchsorted(borders, token, side="right")) - 1] += char
    return texts


def metaspace():
    """Pieces with `▁`, bytes for what it does not know, and a decoder that drops the first space."""
    words = ["▁", "▁the", "▁map", "s", "a", "<unk>"]
    pieces = [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    model = models.Unigram([("<unk>", -20.0), *((word, -1.0) for word in words[:-1]), *pieces], 0, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


METASPACE = metaspace()


def borders_from(cuts, num):
    return sorted({0, num, *(cut % num for cut in cuts)}) if num else [0, 0]


@given(TEXTS, st.lists(st.integers(0, 1000), max_size=12))
def test_byte_level_runs_hold_each_character_where_it_ends(text, cuts):
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    borders = borders_from(cuts, len(ids))
    texts = decode_parts(byte_level_decode, ids, borders)
    assert "".join(texts) == text
    # What stands for a torn character may be in the text itself, and then it may be taken for one.
    if ids and "\ufffd" not in text:
        assert texts == texts_by_bytes(ids, borders)


def test_those_texts_do_split_characters_over_tokens():
    """Against the test above passing vacuously."""
    ids = BYTE_LEVEL.encode("中😀", add_special_tokens=False).ids
    assert len(ids) == 7
    assert [byte_level_decode([number]) for number in ids] == ["\ufffd"] * 7
    mask = np.array([0, 1, 0, 1, 1, 0, 0], dtype=np.int8)
    runs = decode_runs(byte_level_decode, np.array(ids, dtype=np.int32), mask)
    assert [run.text for run in runs] == ["", "", "中", "", "😀"]
    assert [run.trained for run in runs] == [False, True, False, True, False]
    assert [run.input_ids for run in runs] == [ids[:1], ids[1:2], ids[2:3], ids[3:5], ids[5:]]


@given(st.lists(st.integers(0, 1023), max_size=60), st.lists(st.integers(0, 1000), max_size=8))
def test_ids_that_are_no_text_lose_nothing_either(ids, cuts):
    texts = decode_parts(byte_level_decode, ids, borders_from(cuts, len(ids)))
    assert "".join(texts) == byte_level_decode(ids)


@given(st.text(st.sampled_from(" themapsé中😀"), max_size=50), st.lists(st.integers(0, 1000), max_size=12))
def test_pieces_with_spaces_before_them(text, cuts):
    ids = METASPACE.encode(text).ids

    def decode(numbers):
        return METASPACE.decode(numbers, skip_special_tokens=False)

    assert "".join(decode_parts(decode, ids, borders_from(cuts, len(ids)))) == decode(ids)


def test_a_run_keeps_the_space_that_it_begins_with():
    ids = METASPACE.encode("the map the maps").ids

    def decode(numbers):
        return METASPACE.decode(numbers, skip_special_tokens=False)

    assert decode(ids[1:2]) == "map"  # What a run alone would be.
    assert decode_parts(decode, ids, range(len(ids) + 1)) == ["the", " map", " the", " map", "s"]


@given(TEXTS, st.randoms(use_true_random=False))
def test_tokens_come_together_until_they_are_characters(text, random):
    ids = np.array(BYTE_LEVEL.encode(text, add_special_tokens=False).ids, dtype=np.int32)
    mask = np.zeros(len(ids), dtype=np.int8)
    runs = decode_runs(byte_level_decode, ids, mask, is_by_token=True)
    assert [number for run in runs for number in run.input_ids] == ids.tolist()
    assert "".join(run.text for run in runs) == text
    assert all(run.text for run in runs)
    assert all("\ufffd" not in run.text for run in runs) or "\ufffd" in text
    mask = np.array([random.randrange(2) for _ in ids], dtype=np.int8)
    runs = decode_runs(byte_level_decode, ids, mask, is_by_token=True)
    assert [number for run in runs for number in run.input_ids] == ids.tolist()
    assert [run.trained for run in runs for _ in run.input_ids] == mask.astype(bool).tolist()
    assert "".join(run.text for run in runs) == text


@given(TEXTS.filter(bool), st.integers(0, 80))
@example("the map 中", 2)
@example("the map 中", 5)
@example("a😀😀", 2)
def test_a_shortened_sample_is_its_begin_and_its_end(text, most):
    ids = np.array(BYTE_LEVEL.encode(text, add_special_tokens=False).ids, dtype=np.int32)
    head, tail = shorten(byte_level_decode, ids, most)
    assert 0 <= head <= tail <= len(ids)
    if head == tail:
        return
    assert len(text) > most
    begin, end = byte_level_decode(ids[:head].tolist()), byte_level_decode(ids[tail:].tolist())
    assert text.startswith(begin)
    assert text.endswith(end)
    assert len(begin) + len(end) <= most
    # As long as tokens allow: each holds a few characters, and a character has four tokens at most.
    longest = max(len(BYTE_LEVEL.id_to_token(number)) for number in ids.tolist())
    assert len(begin) + len(end) >= most - 2 * (longest + 4)


@pytest.mark.parametrize("most", [None, 5, 100])
def test_what_fits_is_not_shortened(most):
    ids = np.array(BYTE_LEVEL.encode("ab中cd", add_special_tokens=False).ids, dtype=np.int32)
    assert shorten(byte_level_decode, ids, most) == (len(ids), len(ids))


def test_borders_of_masks():
    for mask in itertools.product((0, 1), repeat=5):
        borders = mask_borders(np.array(mask, dtype=np.int8))
        assert borders == [0, *(i for i in range(1, 5) if mask[i] != mask[i - 1]), 5]


def test_a_character_fits_into_the_context():
    assert CONTEXT >= 4
