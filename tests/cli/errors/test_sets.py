"""Sets, stores and plans that do not fit together, or are damaged: what is wrong, and the command that mends it."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from packer_cli.cli.main import main
from packer_cli.commands.output_folder import APPEND_MARKER
from packer_cli.format.checksums import file_checksum
from packer_cli.shards.plan_file import PLAN_VERSION
from tests.cli_runner import run
from tests.reference import home, remove_written

GROUPS = ("--groups", "1k:1,8k:4", "--gpus", 8)


@pytest.fixture(scope="module")
def made(chats, lines_of_bad, tokenizer, tmp_path_factory):
    """A packed set of short chats and of a line that is rejected; no sample needs its longer group."""
    out = tmp_path_factory.mktemp("made") / "out"
    done = run(
        main, "pack", chats, lines_of_bad, "--tokenizer", tokenizer, *GROUPS, "--workers", 1, "--fill", "longest",
        "-o", out,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def lines_of_bad(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / "bad.jsonl"
    path.write_text("not JSON\n")
    return path


@pytest.fixture
def out(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out", symlinks=True)


def refuses(done, code, message):
    assert (done.code, done.stderr.splitlines()[-1]) == (code, f"error: {message}")


def test_appending_where_the_tokens_are_not(hbpack, out, chats, tmp_path):
    other = tmp_path / "other"
    assert hbpack("plan", out, "--groups", "1k", "--gpus", 1, "-o", other).code == 0
    refuses(
        hbpack("append", other, chats),
        2,
        f"'{other}' was planned from the token store '{out}/tokens'; run hbpack tokenize there with all inputs, then "
        "plan and write",
    )


def test_an_append_that_left_a_damaged_note(hbpack, out, chats):
    (out / APPEND_MARKER).write_text("{")
    refuses(
        hbpack("append", out, chats),
        1,
        f"'{out}/{APPEND_MARKER}' is damaged (Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1)); remove it, and run hbpack pack with all inputs",
    )


def test_exporting_a_group_without_packs(hbpack, out, tmp_path):
    done = hbpack("export", out, "--to", "parquet", "--groups", "8k", "-o", tmp_path / "export", "--workers", 1)
    refuses(done, 2, "--groups: g1-8192-sp4 hold no packs; choose groups that do")


def test_showing_with_the_tokenizer_of_another_set(hbpack, out, tokenizer, tmp_path):
    other = shutil.copytree(tokenizer, tmp_path / "other")
    text = json.loads((other / "tokenizer.json").read_text())
    text["added_tokens"].append({**text["added_tokens"][-1], "id": 1024, "content": "<|new|>"})
    (other / "tokenizer.json").write_text(json.dumps(text))
    refuses(
        hbpack("show", out, "--tokenizer", other),
        2,
        f"tokenizer '{other}' has 1,025 token ids and the set's has 1,024, so it is another one; name the one that "
        "the set was made with",
    )


def test_a_plan_of_other_shards(hbpack, out, tmp_path):
    assert hbpack("plan", out, "--groups", "1k", "--gpus", 2, "-o", tmp_path / "other").code == 0
    shutil.copy(tmp_path / "other" / "plan.arrow", home(out))
    refuses(
        hbpack("rebalance", out, "--gpus", 4),
        1,
        f"'{home(out)}/plan.arrow' is not the plan of the shards beside it; run hbpack write, which writes them",
    )


def test_a_plan_of_another_version(hbpack, out):
    data = (out / "plan.arrow").read_bytes()
    old, new = (f'"plan_version": {version}'.encode() for version in (PLAN_VERSION, 1))
    assert old in data
    (out / "plan.arrow").write_bytes(data.replace(old, new))
    refuses(
        hbpack("stats", out),
        1,
        f"'{out}/plan.arrow' has plan version 1, this release reads {PLAN_VERSION}; run hbpack pack again, or hbpack "
        "plan on a token store of this release",
    )


def test_the_schedules_of_a_rebalanced_set(hbpack, out, tmp_path):
    other = shutil.copytree(out, tmp_path / "other", symlinks=True)
    assert hbpack("rebalance", out, "--gpus", 4).code == 0
    assert hbpack("rebalance", other, "--gpus", 16).code == 0
    (path,), (another,) = (home(folder).glob("ranks/rebalanced-*/schedules.arrow") for folder in (out, other))
    shutil.copy(another, path)
    refuses(hbpack("stats", out), 1, f"'{path}' is of another set; run hbpack write, and then hbpack rebalance")
    old, new = (f'"plan_version": {version}'.encode() for version in (PLAN_VERSION, 1))
    for data, why in (
        (b"x", "File is too small: 1"),
        (another.read_bytes().replace(old, new), f"it has plan version 1, this release reads {PLAN_VERSION}"),
    ):
        path.write_bytes(data)
        refuses(
            hbpack("stats", out),
            1,
            f"'{path}' is damaged ({why}); run hbpack write, which makes the set as it was planned, and "
            "then hbpack rebalance",
        )


def test_a_plan_with_another_byte(hbpack, out):
    data = (out / "plan.arrow").read_bytes()
    (digest,) = set(re.findall(rb'"xxh3": "([0-9a-f]{32})"', data))
    for folder in (out, home(out)):  # In a set that was not copied, it is one file.
        (folder / "plan.arrow").write_bytes(data.replace(digest, b"0" * 32))
    message = (
        f"'{out}/plan.arrow' is damaged (its checksum is {digest.decode()}, its header says {'0' * 32}); run hbpack "
        "plan again"
    )
    refuses(hbpack("write", out, "--workers", 1), 1, message)
    remove_written(out)
    refuses(hbpack("write", out, "--workers", 1), 1, message)


def test_tokens_that_are_newer_than_the_plan(hbpack, out, sample, tokenizer):
    remove_written(out)
    words = ("--tokenizer", tokenizer, "--workers", 1, "-o", out)
    assert hbpack("tokenize", sample / "journals.jsonl", *words).code == 0
    refuses(
        hbpack("write", out, "--workers", 1),
        1,
        f"the token store '{out}/tokens' has changed since the plan was made; run hbpack plan again",
    )


@pytest.mark.parametrize(
    ("pattern", "gone", "arguments", "message"),
    [
        (
            "tokens/part-*.arrow",
            "VERSION/shards",
            ["write"],
            (
                "token store part '{path}' is damaged ({size} bytes, tokens.json says {before}); run the same hbpack "
                "tokenize or pack again"
            ),
        ),
        (
            "tokens/part-*.arrow",
            "VERSION/shards",
            ["plan", *GROUPS, "--seed", 1],
            "token store part '{path}' is damaged (it has {size} bytes instead of {before}); tokenize again",
        ),
        (
            "tokens/rejected-*.jsonl",
            "VERSION/shards",
            ["plan", *GROUPS, "--seed", 1],
            "'{path}' is damaged (its checksum is {xxh3}, tokens.json says {xxh3_before}); tokenize again",
        ),
        (
            "VERSION/rejected.jsonl",
            "tokens",
            ["write"],
            (
                "'{path}' is damaged ({size} bytes, hbpack.json says {before}), and the token store that it is made "
                "from is gone; run the same hbpack pack again"
            ),
        ),
    ],
)
def test_a_file_that_was_cut(hbpack, out, pattern, gone, arguments, message):
    pattern, gone = (name.replace("VERSION", home(out).name) for name in (pattern, gone))
    (path,) = out.glob(pattern)
    facts = {"path": path, "before": path.stat().st_size, "xxh3_before": file_checksum(path)}
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(out / gone)
    message = message.format(**facts, size=path.stat().st_size, xxh3=file_checksum(path))
    refuses(hbpack(arguments[0], out, *arguments[1:]), 1, message)


def test_comparing_a_corpus_with_too_many_rejects(hbpack, chats, lines_of_bad, tokenizer):
    words = ("--tokenizer", tokenizer, "--max-rejected", 0, *GROUPS, "--workers", 1)
    why = "broken JSON: invalid literal, expected ... at column ..."
    refuses(
        hbpack("compare", chats, lines_of_bad, *words),
        1,
        f"1 of 41 records (2.44%) rejected, more than --max-rejected 0, most often: {why} (1, the first at "
        f"{lines_of_bad}:1); hbpack tokenize keeps the reasons, or allow more",
    )
