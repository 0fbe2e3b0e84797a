"""Options that pairs and trees rule out: refused before tokenizing, or before planning where only records tell."""

import pytest

PAIR = {"prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3"}


@pytest.fixture
def pack(hbpack, tokenizer, lines_of, tmp_path):
    def call(*arguments):
        words = ("--groups", "1k:1", "--gpus", 2, "--tokenizer", tokenizer, "--workers", 1)
        return hbpack("pack", lines_of(PAIR), *words, *arguments, "--output", tmp_path / "out")

    return call


@pytest.mark.parametrize("items", [("--items", "pairs"), ("--items", "groups"), ("--turns", "branch")])
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--index-only",), "--index-only"),
        (("--align", 16), "--align"),
        (("--parallel", "cp=2"), "--parallel cp"),
        (("--mask", "causal"), "--mask causal"),
        (("--strategy", "wlb", "--global-tokens", "8k"), "--strategy wlb"),
        (("--packing", "wrap"), "--packing wrap"),
    ],
)
def test_known_from_the_options(pack, tmp_path, items, words, option):
    done = pack(*items, *words)
    assert done.code == 2
    assert done.stderr.startswith(f"error: {option} does not work with preference pairs, groups or --turns branch: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "tokens").exists()


@pytest.mark.parametrize("words", [("--items", "none"), ("--schema", "messages")])
def test_a_limit_on_the_path_tokens_of_flat_samples(pack, tmp_path, words):
    done = pack(*words, "--max-path-tokens", "3x")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "--max-path-tokens 3x has no effect: no samples of this set share a prefix" in done.stderr
    assert not (tmp_path / "out" / "tokens").exists()


@pytest.mark.parametrize("words", [("--index-only",), ("--align", 16)])
def test_known_from_the_records(pack, tmp_path, words):
    done = pack(*words)
    assert done.code == 2
    assert f"error: {words[0]} " in done.stderr
    assert "planned" not in done.stderr
    assert (tmp_path / "out" / "tokens" / "tokens.json").exists()
    assert not (tmp_path / "out" / "plan.arrow").exists()


@pytest.mark.parametrize("limit", ["2x", "3x"])
def test_a_limit_on_the_path_tokens_of_a_flat_set(hbpack, tokenizer, chats, tmp_path, limit):
    """Also the limit that is the default of items; the set stays."""
    words = ("--groups", "1k:1,8k:1", "--gpus", 2, "--packing", "isf")
    assert hbpack("pack", chats, "--tokenizer", tokenizer, *words, "--output", tmp_path / "out").code == 0
    before = (tmp_path / "out/hbpack.json").read_bytes()
    done = hbpack("plan", tmp_path / "out", "--max-path-tokens", limit)
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert f"--max-path-tokens {limit} has no effect: no samples of this set share a prefix" in done.stderr
    assert (tmp_path / "out/hbpack.json").read_bytes() == before


def test_an_item_that_is_refused_leaves_the_samples_beside_it(hbpack, tokenizer, lines_of, tmp_path):
    """No sample of a branch is left in the batch."""
    records = {"text": "A plain text that goes on for long enough."}, {**PAIR, "prompt": "", "rejected": ""}
    words = ("--tokenizer", tokenizer, "--append-eos", "never", "--workers", 1, "--output", tmp_path / "out")
    done = hbpack("tokenize", lines_of(*records), *words)
    assert done.code == 0, done.stderr
    assert "1 sample" in done.stderr
    assert "1 rejected" in done.stderr
