"""Inputs, tokenizers and templates that cannot be used: one line, exit code 2, nothing written."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.cli.errors.conftest import FORMS, assert_refused

KNOWN = (
    "hbpack reads .arrow, .bin, .ds, .feather, .ipc, .json, .jsonl, .jsonlines, .md, .ndjson, .npy, .parquet, "
    ".text, .txt, and text and JSON also with .bz2, .gz, .xz or .zst"
)


def test_inputs_that_cannot_be_read(pack, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("empty.jsonl", "empty.json", "data.xyz"):
        (tmp_path / name).touch()
    (tmp_path / "fake.jsonl.gz").write_text("no gzip at all")
    cases = {
        tmp_path
        / "none.jsonl": "{}: no such file or directory, and not a Hugging Face data set name either; check the name",
        empty: f"{{}}: no data files in this folder; {KNOWN}",
        tmp_path / "*.zzz": f"{{}}: no data file matches this pattern; {KNOWN}",
        tmp_path / "data.xyz": f'{{}}: unknown suffix ".xyz"; {KNOWN}',
        tmp_path / "empty.jsonl": "the inputs hold no data: {}; name others",
        tmp_path / "empty.json": "the inputs hold no data: {}; name others",
    }
    for path, message in cases.items():
        assert_refused(pack(path), message.format(path), tmp_path / "out")
    why = "not a .gz file: compressed data is corrupt (incorrect header check)"
    message = f"{tmp_path}/fake.jsonl.gz: cannot be read: {why}; correct it, or leave it out"
    assert_refused(pack(tmp_path / "fake.jsonl.gz"), message, tmp_path / "out")


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


def test_an_input_that_cannot_be_read(pack_as_user, chats, tmp_path):
    path = shutil.copy(chats, tmp_path / "closed.jsonl")
    path.chmod(0)
    assert pack_as_user(path, tmp_path / "out") == (
        f"error: {path}: cannot be read: Permission denied; correct it, or leave it out\n"
    )


def test_tokenizers_that_cannot_be_used(pack, chats, tokenizer, tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    done = pack(chats, "--tokenizer", folder)
    assert_refused(done, f"{folder}: the folder holds no tokenizer.json; {FORMS}", tmp_path / "out")
    done = pack(chats, "--tokenizer", tmp_path / "none")
    assert_refused(done, f"{tmp_path}/none: no such file or folder; {FORMS}", tmp_path / "out")
    (folder / "tokenizer.json").write_text('{"model": ')
    why = "is not readable JSON (Expecting value: line 1 column 11 (char 10))"
    done = pack(chats, "--tokenizer", folder)
    assert_refused(done, f"{folder}: tokenizer.json {why}; {FORMS}", tmp_path / "out")
    done = pack(chats, "--tokenizer", folder / "tokenizer.json")
    assert_refused(done, f"{folder}/tokenizer.json {why}; {FORMS}", tmp_path / "out")


def test_chats_need_a_template_wherever_the_first_one_stands(pack, chats, sample, tokenizer, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(tokenizer / "tokenizer.json", bare)
    message = (
        "the data holds conversations, but the tokenizer has no chat template; give one with --chat-template, a Jinja "
        "file or a name such as chatml"
    )
    # With the journals, the first part is written before the second one is found to be impossible.
    for inputs in ([chats], [sample / "journals.jsonl", chats]):
        done = pack(*inputs, "--tokenizer", bare, "--eos-token", "<|end|>")
        assert (done.code, done.stderr.splitlines()[-1]) == (2, f"error: {message}")
        assert "template   none; Alpaca records take Stanford's prompt" in done.stderr.splitlines()
        assert not (tmp_path / "out").exists()
    done = pack(chats, "--chat-template", "{% for %}")
    assert (done.code, done.stderr.splitlines()[-1]) == (
        2,
        (
            "error: the chat template is not valid Jinja (Expected an expression, got 'end of statement block'); give "
            "another with --chat-template FILE"
        ),
    )


RULE = "a length is 1 .. 2147483647; correct it, or leave it out"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("1 2 x", "value 3 is 'x'; write one integer a line, 1 .. 2147483647"),
        ("1 0 3", f"value 2 is 0; {RULE}"),
        ("5000000000", f"value 1 is 5000000000; {RULE}"),
    ],
)
def test_a_wrong_file_of_lengths(hbpack, tmp_path, content, reason):
    path = tmp_path / "lengths.txt"
    path.write_text(content)
    assert hbpack("stats", path) == (2, "", f"error: lengths file '{path}': {reason}\n")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that cannot be read by anyone")
def test_a_file_of_lengths_that_cannot_be_read(hbpack, tmp_path):
    path = tmp_path / "lengths.txt"
    path.symlink_to("/proc/self/mem")
    reason = "cannot be read: Input/output error; check the file and its permissions"
    assert hbpack("stats", path) == (2, "", f"error: lengths file '{path}' {reason}\n")


def test_stats_of_a_plan_file_and_of_a_corpus(hbpack, pack, chats, tmp_path):
    assert pack(chats).code == 0
    done = hbpack("stats", tmp_path / "out" / "plan.arrow")
    of_folder = hbpack("stats", tmp_path / "out")
    assert done.stdout.splitlines()[:-1] == of_folder.stdout.splitlines()[:-1]
    assert done.stdout.startswith("Records\n")
    message = f"error: '{chats}' is a corpus; run hbpack tokenize, and name its output\n"
    assert hbpack("stats", chats) == (2, "", message)
    lengths = hbpack("stats", tmp_path / "out" / "tokens").stdout
    assert "  samples " in lengths
    assert "  tokens of samples over 8k " in lengths
