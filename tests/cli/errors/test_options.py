"""Wrong options and arguments: one line with the value, the rule and the remedy; exit code 2, nothing written."""

from __future__ import annotations

import pytest

from packer_cli.plan.packing import REGISTRY
from tests.cli.errors.conftest import assert_refused

NO_LIMIT = "is not a limit; write a number of records such as 500, 1% of the records, or 1%bytes"
GROUP_FORM = "is not CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]], such as 16k:1 or 128k:8"


BAD_OVERFLOW = (
    "invalid value for '--overflow': 'spill' is not one of 'split', 'truncate', 'drop', 'error'; "
    "see hbpack pack --help"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--groups", "8k,1k"], "groups must have rising capacities, got 8k,1k; sort them"),
        (["--groups", "1k,1k"], "groups must have rising capacities, got 1k,1k; leave one of the equal ones out"),
        (["--groups", "x"], f"--groups: group 'x' {GROUP_FORM}"),
        (["--groups", ""], f"--groups: group '' {GROUP_FORM}"),
        (["--groups", "-1"], f"--groups: group '-1' {GROUP_FORM}"),
        (["--groups", "1k,,2k"], f"--groups: group '' {GROUP_FORM}"),
        (["--groups", "1k:1:2:3"], f"--groups: group '1k:1:2:3' {GROUP_FORM}"),
        (["--groups", "0"], "--groups: group '0': capacity must be at least 1"),
        (["--groups", "9999999999"], "--groups: group '9999999999': capacity must be below 2147483648"),
        (["--groups", "1k:0"], "--groups: group '1k:0': sp_size must be at least 1"),
        (["--groups", "1k:1:-1"], "--groups: group '1k:1:-1': checkpoint_layers must be at least 0"),
        (
            ["--groups", "1k:3"],
            ("--gpus 8: a replica has 3 GPUs (sp3), which must divide it; choose 6 or 9, or plan with other degrees"),
        ),
        (["--gpus", "0"], "--gpus must be at least 1, got 0"),
        (["--gpus", "-1"], "--gpus must be at least 1, got -1"),
        (["--gpus", "many"], "--gpus must be an integer, got 'many'"),
        (["--gpus", "99999999999"], "--gpus must be at most 1048576, got 99999999999"),
        (["--packing", "magic"], f"--packing: unknown packing algorithm 'magic'; known: {', '.join(REGISTRY)}"),
        (
            ["--packing", "isf:foo=1"],
            "--packing: packing 'isf' has no option 'foo=1'; known, with defaults: rounds=300, threshold=0.997",
        ),
        (["--packing", "isf:rounds=0"], "--packing: option 'rounds' must be at least 1 and at most 2147483647, got 0"),
        (["--global-tokens", "9" * 30], f"--global-tokens must be at most {2**62}, got {'9' * 30}"),
        (
            ["--global-tokens", "lots"],
            "--global-tokens: 'lots' is not a number of tokens; write for example 16384, 16k or 1m",
        ),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--epochs", "1001"], "--epochs must be at most 1000, got 1001"),
        (["--curriculum-steps", "1.5"], "--curriculum-steps must be an integer, got '1.5'"),
        (["--max-rejected", "-1"], f"--max-rejected: '-1' {NO_LIMIT}"),
        (["--max-rejected", "101%"], f"--max-rejected: '101%' {NO_LIMIT}"),
        (["--shard-size", "1"], "--shard-size must be at least 65536, got 1"),
        (
            ["--shard-size", "big"],
            "--shard-size: 'big' is not a number of bytes; write for example 1048576, 256MiB or 1GB",
        ),
        (["--tokenizer", ""], "--tokenizer is required"),
        (
            ["--workers", "0"],
            "--workers must be at least 1, got 0",
        ),
        (
            ["--overflow", "spill"],
            BAD_OVERFLOW,
        ),
        (
            ["--overflow", "truncat"],
            (
                "invalid value for '--overflow': 'truncat' is not one of 'split', 'truncate', 'drop', 'error' "
                "(did you mean 'truncate'?); see hbpack pack --help"
            ),
        ),
        (
            ["--packing", "isff"],
            f"--packing: unknown packing algorithm 'isff' (did you mean 'isf'?); known: {', '.join(REGISTRY)}",
        ),
        (
            ["--append-eos=1"],
            "invalid value for '--append-eos': '1' is not one of 'auto', 'always', 'never'; see hbpack pack --help",
        ),
        (
            ["--alpaca", "auto", "--append-eos"],
            "option '--append-eos' requires an argument; see hbpack pack --help",
        ),
    ],
)
def test_a_wrong_option(pack, chats, tmp_path, options, message):
    assert_refused(pack(chats, *options), message, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "no such command 'frobnicate'; see hbpack --help"),
        (["pakc"], "no such command 'pakc' (did you mean 'pack'?); see hbpack --help"),
        (["stats", "--seeds", "3"], "no such option '--seeds'; hbpack compare has it; see hbpack stats --help"),
        (
            ["pack", "in.jsonl", "--shard", "0/4"],
            (
                "no such option '--shard'; hbpack tokenize, write and export have it, so run hbpack tokenize, plan "
                "and then write in place of hbpack pack; see hbpack pack --help"
            ),
        ),
        (["show", "out", "--to", "x"], "no such option '--to'; hbpack export has it; see hbpack show --help"),
        (["pack", "in.jsonl"], "missing option '--output' / '-o'; see hbpack pack --help"),
        (["pack", "-o", "out", "--tokenizer", "t", "--groups", "1k", "--gpus", "1"], "INPUT is required"),
        (["pack", "in.jsonl", "-o", "out"], "--tokenizer is required"),
        (["pack", "in.jsonl", "-o", "out", "--tokenizer", "t"], "--groups is required"),
        (["pack", "in.jsonl", "-o", "out", "--tokenizer", "t", "--groups", "1k"], "--gpus is required"),
        (["plan"], "missing argument 'FOLDER'; see hbpack plan --help"),
        (["plan", "."], "--groups is required"),
        (
            ["plan", ".", "--groups", "1k", "--gpus", "1"],
            "'tokens' holds no token store (no tokens.json); run hbpack tokenize",
        ),
        (["write", "nowhere"], "'nowhere' holds no plan (no plan.arrow); run hbpack plan"),
        (
            ["stats", "nowhere"],
            "'nowhere' does not exist; name a packed data set, a token store or a file of lengths",
        ),
        (
            ["stats", "."],
            "'.' is not a packed data set (hbpack.json), plan, token store, or file of lengths; name one",
        ),
        (
            ["stats", ".", "--gpus", "1"],
            "--gpus is for planning lengths, which also needs --groups; give it, or leave --gpus out",
        ),
    ],
)  # fmt: skip
def test_something_is_missing(hbpack, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = hbpack(*arguments)
    assert (done.code, done.stderr) == (2, f"error: {message}\n")
    assert not any(tmp_path.iterdir())


def test_no_command_shows_the_help(hbpack):
    done = hbpack()
    assert done.code == 2
    assert done.stderr.startswith("Usage: hbpack [OPTIONS] COMMAND [ARGS]...\n")


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("0", "{}@0: the weight must be above 0 and finite; leave out an input of no weight"),
        ("-1", "{}@-1: the weight must be above 0 and finite; leave out an input of no weight"),
        ("nan", "{}@nan: the weight must be above 0 and finite; leave out an input of no weight"),
        ("x", "{0}@x: the weight 'x' is not a number; write {0}@2.0, {0}@500Mtokens or {0}@70%"),
        ("", "{0}@: the weight '' is not a number; write {0}@2.0, {0}@500Mtokens or {0}@70%"),
    ],
)
def test_a_wrong_weight(pack, chats, tmp_path, weight, message):
    assert_refused(pack(f"{chats}@{weight}"), message.format(chats), tmp_path / "out")


@pytest.mark.parametrize(
    ("balance", "message"),
    [
        ("best", "--balance: unknown balance 'best'; known: none, sort, window:K, each with +refine or without"),
        (
            "sort+more",
            "--balance: unknown balance 'sort+more'; known: none, sort, window:K, each with +refine or without",
        ),
        ("window:0", "--balance: balance 'window:0' needs a number of iterations, such as window:8"),
    ],
)
def test_an_unknown_balance(hbpack, tmp_path, balance, message):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("5\n7\n")
    done = hbpack("stats", lengths, "--groups", "1k", "--gpus", "1", "--balance", balance)
    assert done == (2, "", f"error: {message}\n")
