"""Wrong usage: one line that says what was wrong, the rule and the remedy; exit code 2, nothing written."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packer_cli.plan.packing import REGISTRY
from tests.reference import tree

FORMS = (
    "a tokenizer is a folder with tokenizer.json, a tokenizer.json, a SentencePiece .model, "
    "a vocab.json beside its merges.txt, or a Hugging Face name"
)
KNOWN = (
    "hbpack reads .arrow, .feather, .ipc, .json, .jsonl, .md, .ndjson, .parquet, .text, .txt, "
    "and text and JSON also with .gz or .zst"
)


BAD_OVERFLOW = (
    "invalid value for '--overflow': 'spill' is not one of 'split', 'truncate', 'drop', 'error'; "
    "see hbpack pack --help"
)


def assert_refused(done, message, output):
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert not output.exists()


GROUP_FORM = "is not CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]], such as 16k:1 or 128k:8"


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
            "the SP degree of group 1k:3 must divide the number of GPUs, 8; choose one of 1, 2, 4, 8",
        ),
        (["--gpus", "0"], "--gpus must be at least 1, got 0"),
        (["--gpus", "-1"], "--gpus must be at least 1, got -1"),
        (["--gpus", "many"], "--gpus must be an integer, got 'many'"),
        (["--gpus", "99999999999"], "--gpus must be at most 1048576, got 99999999999"),
        (["--packing", "magic"], f"--packing: unknown packing algorithm 'magic'; known: {', '.join(REGISTRY)}"),
        (
            ["--packing", "isf:foo=1"],
            "--packing: packing 'isf' has no option 'foo=1'; known, with defaults: rounds=50, threshold=0.997",
        ),
        (["--packing", "isf:rounds=0"], "--packing: option 'rounds' of packing 'isf' must be at least 1, got 0"),
        (["--global-tokens", "0"], "--global-tokens must be at least 1, got 0"),
        (["--global-tokens", "9" * 30], f"--global-tokens must be at most {2**62}, got {'9' * 30}"),
        (
            ["--global-tokens", "lots"],
            "--global-tokens: 'lots' is not a number of tokens; write for example 16384, 16k or 1m",
        ),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--epochs", "1001"], "--epochs must be at most 1000, got 1001"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--curriculum-steps", "1.5"], "--curriculum-steps must be an integer, got '1.5'"),
        (["--max-rejected", "-1"], "--max-rejected must be at least 0, got -1"),
        (["--shard-size", "1"], "--shard-size must be at least 65536, got 1"),
        (
            ["--shard-size", "big"],
            "--shard-size: 'big' is not a number of bytes; write for example 1048576, 256MiB or 1GB",
        ),
        (["--tokenizer", ""], "--tokenizer is required"),
        (
            ["--workers", "0"],
            "invalid value for '--workers': 0 is not in the range 1<=x<=4096; see hbpack pack --help",
        ),
        (
            ["--overflow", "spill"],
            BAD_OVERFLOW,
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
        (["stats", "--seeds", "3"], "no such option '--seeds' (did you mean '--seed'?); see hbpack stats --help"),
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
        (["stats", "."], "'.' is not a packed data set (hbpack.json), plan, token store, or file of lengths"),
        (
            ["stats", ".", "--gpus", "1"],
            "--groups and --gpus go together; give both, or neither for the lengths alone",
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


def test_inputs_that_cannot_be_read(pack, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("empty.jsonl", "empty.json", "data.bin"):
        (tmp_path / name).touch()
    (tmp_path / "fake.jsonl.gz").write_text("no gzip at all")
    cases = {
        tmp_path / "none.jsonl": "{}: no such file or directory, and not a Hugging Face data set name either",
        empty: f"{{}}: no data files in this folder; {KNOWN}",
        tmp_path / "*.zzz": f"{{}}: no data file matches this pattern; {KNOWN}",
        tmp_path / "data.bin": f'{{}}: unknown suffix ".bin"; {KNOWN}',
        tmp_path / "empty.jsonl": "the inputs hold no data: {}",
        tmp_path / "empty.json": "the inputs hold no data: {}",
    }
    for path, message in cases.items():
        assert_refused(pack(path), message.format(path), tmp_path / "out")
    done = pack(tmp_path / "fake.jsonl.gz")
    assert done.stderr.startswith(f"error: {tmp_path}/fake.jsonl.gz: cannot be read: not a .gz file: ")
    assert done.code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="file names are text elsewhere")
def test_a_name_that_is_not_utf8(pack, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"bad\xff.jsonl")
    try:
        with open(path, "wb") as file:
            file.write(b'{"text": "x"}\n')
    except OSError:
        pytest.skip("the file system takes only UTF-8 names")
    done = pack(tmp_path)
    assert_refused(done, f"{os.fsdecode(path)!a}: the name is not UTF-8; rename it", tmp_path / "out")


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("0", "{}@0: the weight must be above 0 and finite; leave out an input of no weight"),
        ("-1", "{}@-1: the weight must be above 0 and finite; leave out an input of no weight"),
        ("nan", "{}@nan: the weight must be above 0 and finite; leave out an input of no weight"),
        ("x", "{0}@x: the weight 'x' is not a number; write {0}@2.0"),
        ("", "{0}@: the weight '' is not a number; write {0}@2.0"),
    ],
)
def test_a_wrong_weight(pack, chats, tmp_path, weight, message):
    assert_refused(pack(f"{chats}@{weight}"), message.format(chats), tmp_path / "out")


def test_tokenizers_that_cannot_be_used(pack, chats, tokenizer, tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    done = pack(chats, "--tokenizer", folder)
    assert_refused(done, f"{folder}: the folder holds no tokenizer.json; {FORMS}", tmp_path / "out")
    done = pack(chats, "--tokenizer", tmp_path / "none")
    assert_refused(done, f"{tmp_path}/none: no such file or folder; {FORMS}", tmp_path / "out")
    (folder / "tokenizer.json").write_text('{"model": ')
    done = pack(chats, "--tokenizer", folder)
    assert done.code == 2
    assert done.stderr.startswith(f"error: {folder}: tokenizer.json is not readable JSON (")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    done = pack(chats, "--tokenizer", folder / "tokenizer.json")
    assert done.stderr.startswith(f"error: {folder}/tokenizer.json is not readable JSON (")


def test_chats_need_a_template_wherever_the_first_one_stands(pack, chats, sample, tokenizer, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(tokenizer / "tokenizer.json", bare)
    message = (
        "the data holds conversations, but the tokenizer has no chat template; give one with --chat-template FILE"
    )
    # With the journals, the first part is written before the second one is found to be impossible.
    for inputs in ([chats], [sample / "journals.jsonl", chats]):
        done = pack(*inputs, "--tokenizer", bare)
        assert (done.code, done.stderr.splitlines()[-1]) == (2, f"error: {message}")
        assert "template   none; Alpaca records take Stanford's prompt" in done.stderr.splitlines()
        assert not (tmp_path / "out").exists()
    done = pack(chats, "--chat-template", "{% for %}")
    assert done.stderr.splitlines()[-1].startswith("error: the chat template is not valid Jinja (")
    assert done.code == 2


def test_a_usage_error_leaves_an_earlier_set_as_it_is(pack, chats, tmp_path):
    assert pack(chats).code == 0
    before = tree(tmp_path / "out")
    for arguments in (
        [chats, "--tokenizer", tmp_path / "none"],
        [chats, "--chat-template", "{% for %}"],
        [tmp_path / "none.jsonl"],
        [chats, "--packing", "magic"],
        [chats, "--groups", "8k,1k"],
    ):
        assert pack(*arguments).code == 2
        assert tree(tmp_path / "out") == before


def test_outputs_that_are_not_ours(pack, chats, tmp_path):
    def refuses(output, message):
        before = tree(output) if output.is_dir() else None
        done = pack(chats, output=output)
        assert (done.code, done.stderr) == (2, f"error: {message}\n")
        assert (tree(output) if output.is_dir() else None) == before

    folder = tmp_path / "holiday"
    folder.mkdir()
    (folder / "photo.jpg").touch()
    refuses(folder, f"output folder '{folder}' holds something else (photo.jpg); name an empty or a new folder")
    thesis = tmp_path / "thesis"
    (thesis / "tokens").mkdir(parents=True)
    (thesis / "tokens" / "part-00099.arrow").touch()
    refuses(thesis, f"output folder '{thesis}' holds something else (tokens); name an empty or a new folder")
    file = tmp_path / "file"
    file.touch()
    refuses(file, f"output folder '{file}': '{file}' is a file; name another")
    refuses(file / "below", f"output folder '{file}/below': '{file}' is a file; name another")


@pytest.fixture
def pack_as_user(sample) -> Callable[[Path, Path], str]:
    """`hbpack pack INPUT --output OUT` as a process that file permissions bind, as they do not bind root: stderr."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and sys.platform != "linux":
        pytest.skip("root may read and write everything")

    def drop() -> None:
        libc = ctypes.CDLL(None)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP

    def call(path: Path, output: Path) -> str:
        words = ["pack", path, "--tokenizer", sample / "tokenizer", "--workers", "1", "--output", output]
        command = [sys.executable, "-m", "packer_cli", *words, "--groups", "1k", "--gpus", "1"]
        done = subprocess.run(command, preexec_fn=drop if is_root else None, capture_output=True, text=True)
        assert done.returncode == 2
        assert not output.exists()
        return done.stderr

    return call


def test_an_output_that_cannot_be_written(pack_as_user, chats, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert pack_as_user(chats, closed / "out") == (
        f"error: output folder '{closed}/out': '{closed}' cannot be written to; name another\n"
    )


def test_an_input_that_cannot_be_read(pack_as_user, chats, tmp_path):
    path = shutil.copy(chats, tmp_path / "closed.jsonl")
    path.chmod(0)
    assert pack_as_user(path, tmp_path / "out") == f"error: {path}: cannot be read: Permission denied\n"


def test_the_output_is_never_an_input(pack, hbpack, chats, tmp_path, tokenizer):
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(chats, folder)
    out = folder / "out"
    assert pack(folder, output=out).code == 0
    before = tree(out)
    done = pack(folder, output=out)
    assert "the shards are up to date" in done.stderr
    assert tree(out) == before
    for pattern in ("*", "**/*"):
        done = pack(folder / pattern, output=tmp_path / f"other{len(pattern)}")
        assert "tokenized 40 records: 40 samples" in done.stderr
    done = pack(out, output=tmp_path / "third")
    assert done.stderr == f"error: {out}: is an output of hbpack; name the data that it was made from\n"
    done = pack(out / "tokens", output=out)
    assert done.stderr == f"error: {out}/tokens: lies in the output folder; name another output\n"


def test_nothing_to_plan_says_why(pack, lines_of, chats, sample, tmp_path):
    def fails(reason, *arguments):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        done = pack(*arguments)
        assert done.code == 1
        assert done.stderr.splitlines()[-1] == f"error: there is nothing to plan: {reason}"

    fails("the inputs hold no records", lines_of("", "  ", name="blank.jsonl"))
    fails("the weights leave out every sample; raise them", f"{chats}@0.000001")
    reasons = repr(f"{tmp_path}/out/rejected.jsonl")
    fails(f"every record was rejected, see {reasons}", lines_of("x", "y"))
    assert len((tmp_path / "out" / "rejected.jsonl").read_text().splitlines()) == 2
    fails(
        f"every sample was dropped, see {reasons}",
        sample / "journals.jsonl",
        "--groups",
        "8",
        "--overflow",
        "drop",
    )
    assert len((tmp_path / "out" / "rejected.jsonl").read_text().splitlines()) == 143


def test_overflow_error_names_the_record(pack, sample):
    done = pack(sample / "journals.jsonl", "--groups", "1k", "--overflow", "error")
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: {sample}/journals.jsonl:2: the sample has 9200 tokens, over the largest group's 1024 "
        "(59 such samples); choose --overflow split, truncate or drop"
    )


def test_damaged_sets_are_named(hbpack, pack, chats, tmp_path):
    out = tmp_path / "out"
    assert pack(chats).code == 0
    plan = (out / "plan.arrow").read_bytes()
    (out / "plan.arrow").write_bytes(plan[: len(plan) // 2])
    assert hbpack("stats", out) == (
        1,
        "",
        f"error: '{out}/plan.arrow' is damaged (Not an Arrow file); run hbpack plan again\n",
    )
    assert hbpack("write", out).code == 1
    (out / "tokens" / "tokens.json").write_text(json.dumps({"format": "else"}))
    done = hbpack("plan", out, "--groups", "1k", "--gpus", 1)
    assert done.code == 1
    assert done.stderr.startswith(f"error: '{out}/tokens/tokens.json' is damaged (")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("1 2 x", "value 3 is 'x', not an integer"),
        ("1 0 3", "value 2 is 0; a length is 1 .. 2147483647"),
        ("5000000000", "value 1 is 5000000000; a length is 1 .. 2147483647"),
    ],
)
def test_a_wrong_file_of_lengths(hbpack, tmp_path, content, reason):
    path = tmp_path / "lengths.txt"
    path.write_text(content)
    assert hbpack("stats", path) == (2, "", f"error: lengths file '{path}': {reason}\n")


def test_stats_of_a_plan_file_and_of_a_corpus(hbpack, pack, chats, tmp_path):
    assert pack(chats).code == 0
    done = hbpack("stats", tmp_path / "out" / "plan.arrow")
    assert done == hbpack("stats", tmp_path / "out")
    assert done.stdout.startswith("Records\n")
    message = f"error: '{chats}' is a corpus; run hbpack tokenize, and name its output\n"
    assert hbpack("stats", chats) == (2, "", message)
    lengths = hbpack("stats", tmp_path / "out" / "tokens").stdout
    assert "  samples " in lengths
    assert "  tokens of samples over 8k " in lengths


def test_running_out_of_memory_is_one_line(pack, chats, monkeypatch):
    import packer_cli.stages.planning

    def plan(*_):
        raise MemoryError

    monkeypatch.setattr(packer_cli.stages.planning, "plan_store", plan)
    done = pack(chats)
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        "error: out of memory; close other programs, or give fewer --workers, and run the same command again"
    )


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
