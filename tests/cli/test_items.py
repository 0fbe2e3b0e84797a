"""--items, --turns and --share-prefixes: what they take and refuse, and what files keep of them."""

import json

import pytest

from tests.cli.conftest import rejected

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
PAIR = {"prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3"}
TEXT = {"text": "A text."}


@pytest.fixture
def tokenize(hbpack, tokenizer, tmp_path):
    def call(*arguments):
        words = ("--tokenizer", tokenizer, "--workers", 1, "--output", tmp_path / "out")
        return hbpack("tokenize", *words, *arguments)

    return call


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("--turns", "branch", "--loss-on", "all"),
            "--loss-on all trains on every token, but --turns branch trains each turn once; give another --loss-on",
        ),
        (
            ("--items", "pairs", "--schema", "messages"),
            "--items pairs takes no records of --schema messages; leave out --schema, or give --schema preference",
        ),
        (
            ("--items", "groups", "--schema", "preference"),
            "--items groups takes no records of --schema preference; leave out --schema, or give --schema completions",
        ),
        (
            ("--items", "none", "--schema", "preference"),
            "--items none takes no records of --schema preference; leave out one of the two",
        ),
    ],
)
def test_options_that_do_not_go_together(tokenize, lines_of, words, why):
    done = tokenize(lines_of(CHAT), *words)
    assert (done.code, done.stderr) == (2, f"error: {why}\n")


def test_what_is_not_taken_is_rejected(tokenize, lines_of, tmp_path):
    path = lines_of(PAIR, TEXT)
    assert tokenize(path, "--items", "none").code == 0
    ((_, line, reason),) = rejected(tmp_path / "out")
    assert line == 1
    assert "--items none takes no preference pairs" in reason
    assert tokenize(path, "--items", "pairs").code == 0
    ((_, line, reason),) = rejected(tmp_path / "out")
    assert line == 2
    assert reason.startswith('not a preference record: has keys "text"; needs "chosen" and "rejected"')


def test_options_are_kept_where_they_were_given(tokenize, lines_of, tmp_path):
    path, index = lines_of(CHAT, TEXT), tmp_path / "out" / "tokens" / "tokens.json"

    def options():
        return json.loads(index.read_bytes())["options"]

    assert tokenize(path).code == 0
    assert [options()[name] for name in ("items", "turns", "share_prefixes")] == ["auto", "whole", True]
    done = tokenize(path, "--items", "auto", "--share-prefixes")
    assert "reused 2 tokenized records" in done.stderr
    done = tokenize(path, "--turns", "branch", "--no-share-prefixes", "--items", "none")
    assert "tokenized 2 records" in done.stderr
    assert (
        "loss       on assistant turns, completions and plain texts, each turn in a sample of its own" in done.stderr
    )
    kept = options()
    assert (kept["turns"], kept["share_prefixes"], kept["items"]) == ("branch", False, "none")
    done = tokenize(path, "--turns", "branch", "--no-share-prefixes", "--items", "none")
    assert "reused 2 tokenized records" in done.stderr


def test_pairs_of_equal_answers_are_reported(tokenize, lines_of, tmp_path):
    """Those that stay: a pair is rejected if an answer has no loss, and the reason names the answer."""
    tokens = {"chosen_ids": [4, 5], "rejected_ids": [4, 5]}
    done = tokenize(lines_of(PAIR, {**PAIR, "rejected": " 2"}, tokens, {**tokens, "rejected_ids": [4]}, TEXT))
    assert done.code == 0
    expected = (
        "2 records have equal answers; such pairs are kept, as in TRL, but most losses learn nothing from them\n"
    )
    assert expected in done.stderr
    assert [reason for *_, reason in rejected(tmp_path / "out")] == [
        "rejected: it has no loss tokens, so the pair is left out"
    ]
