"""`hbpack append`: the bytes of packing everything together, also after it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from packer_cli.commands import append, pack_corpus
from packer_cli.commands.append import GONE_REMEDY
from packer_cli.errors import RunError
from tests.cli_runner import run
from tests.reference import current_tree, home, tree


@pytest.fixture(scope="module")
def sample(repo, tmp_path_factory) -> Path:
    """A third of the sample's chats, its journals, and its tokenizer."""
    folder = tmp_path_factory.mktemp("append")
    given = repo / "examples" / "sample"
    lines = (given / "chats.jsonl").read_text().splitlines(keepends=True)
    (folder / "old.jsonl").write_text("".join(lines[:600]))
    (folder / "new.jsonl").write_text("".join(lines[600:900]))
    shutil.copy(given / "journals.jsonl", folder)
    shutil.copytree(given / "tokenizer", folder / "tokenizer")
    return folder


def packed(sample: Path, output: Path, *names: str) -> Path:
    done = run(
        main, "pack", *(sample / name for name in names), "--tokenizer", sample / "tokenizer", "--groups", "1k:1,8k:4",
        "--gpus", 8, "--seed", 3, "--append-eos", "always", "--shard-size", "100kB", "--overflow", "split",
        "--workers", 1, "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def together(sample, tmp_path_factory) -> dict[str, bytes]:
    """The set of all three."""
    return current_tree(
        packed(sample, tmp_path_factory.mktemp("all") / "out", "old.jsonl", "new.jsonl", "journals.jsonl@2")
    )


@pytest.fixture(scope="module")
def first(sample, tmp_path_factory) -> Path:
    return packed(sample, tmp_path_factory.mktemp("first") / "out", "old.jsonl")


@pytest.fixture
def out(first, tmp_path) -> Path:
    """A set to append to."""
    return Path(shutil.copytree(first, tmp_path / "out", symlinks=True))


def appended(out: Path, *inputs: object):
    return run(main, "append", out, *inputs, "--workers", 1)


def test_it_is_as_if_all_had_been_packed_together(out, sample, together):
    first = home(out)
    before = tree(first)
    done = appended(out, sample / "new.jsonl")
    assert done.code == 0, done.stderr
    assert "appended 1 input to 1; the plan and the shards are new" in done.stderr
    assert appended(out, sample / "journals.jsonl@2").code == 0
    assert current_tree(out) == together
    assert tree(first) == before
    done = appended(out, sample / "journals.jsonl@2")
    assert done.code == 0
    assert "the set has this data already" in done.stderr
    assert current_tree(out) == together


def test_a_folder_is_the_same_with_a_slash_behind_it(out, sample, tmp_path):
    (tmp_path / "more").mkdir()
    shutil.copy(sample / "new.jsonl", tmp_path / "more")
    assert appended(out, f"{tmp_path}/more/").code == 0
    for name in (f"{tmp_path}/more", f"{tmp_path}/./more//"):
        assert "the set has this data already" in appended(out, name).stderr


@pytest.mark.parametrize("stage", ["make_whole", "PackedOutput"])
def test_an_interrupted_append_goes_on(out, sample, together, monkeypatch, stage):
    work, before = getattr(pack_corpus, stage), (out / "hbpack.json").read_bytes()

    def interrupted(*arguments, **options):
        if stage == "make_whole":
            work(*arguments, **options)
        raise KeyboardInterrupt

    new = (sample / "new.jsonl", sample / "journals.jsonl@2")
    monkeypatch.setattr(pack_corpus, stage, interrupted)
    assert appended(out, *new).code == 130
    monkeypatch.undo()
    assert (out / "hbpack.json").read_bytes() == before
    assert run(main, "verify", out, "--workers", 1).code == 0
    other = appended(out, sample / "new.jsonl")
    assert other.code == 2
    assert other.stderr == (
        f"error: an append to {str(out)!r} did not end; finish it first with hbpack append {out} "
        f"{sample / 'new.jsonl'} {sample / 'journals.jsonl'}@2\n"
    )
    assert appended(out, *new).code == 0
    assert current_tree(out) == together


@pytest.mark.parametrize("others", [["journals.jsonl"], []], ids=["other inputs", "the same inputs"])
def test_an_append_that_was_given_up_is_forgotten(out, sample, tmp_path, monkeypatch, others):
    """Packing the folder ends it: finishing it later would leave out other inputs, and need not be done first."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(append, "pack_corpus", interrupted)
    assert appended(out, sample / "journals.jsonl@3").code == 130
    monkeypatch.undo()
    packed(sample, out, "old.jsonl", *others)
    done = appended(out, sample / "new.jsonl")
    assert done.code == 0, done.stderr
    assert current_tree(out) == current_tree(packed(sample, tmp_path / "all", "old.jsonl", *others, "new.jsonl"))


def test_what_cannot_be_appended_changes_nothing(out, sample, tmp_path, monkeypatch):
    before = tree(out)
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    expected = {
        "nowhere.jsonl": (
            "nowhere.jsonl: no such file or directory, and not a Hugging Face data set name either; check the name"
        ),
        str(tmp_path / "bad.parquet"): None,
    }
    for name, why in expected.items():
        done = appended(out, name)
        assert done.code == 2
        assert why is None or done.stderr == f"error: {why}\n"
        assert tree(out) == before
    again = appended(out, sample / "old.jsonl")
    assert again.code == 0
    assert again.stderr.splitlines()[-1] == "the set has this data already"
    assert tree(out) == before
    broken = shutil.copytree(sample / "tokenizer", tmp_path / "tokenizer")
    settings = json.loads((broken / "tokenizer_config.json").read_text())
    (broken / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "{{ messages }}"}))
    done = run(main, "append", out, sample / "new.jsonl", "--tokenizer", broken)
    assert done.code == 2
    assert done.stderr == (
        f"error: {broken} is not the tokenizer that the set was made with, or has changed since; name that one with "
        "--tokenizer, or run hbpack pack with all inputs\n"
    )
    monkeypatch.setattr(append, "pack_corpus", lambda *_: (_ for _ in ()).throw(RunError("no room")))
    assert appended(out, sample / "new.jsonl").code == 1
    assert tree(out) == before


def test_an_input_that_is_gone(sample, tmp_path):
    (tmp_path / "a.jsonl").write_text((sample / "old.jsonl").read_text())
    shutil.copytree(sample / "tokenizer", tmp_path / "tokenizer")
    out = packed(tmp_path, tmp_path / "out", "a.jsonl")
    (tmp_path / "a.jsonl").unlink()
    done = appended(out, sample / "new.jsonl")
    assert done.code == 2
    assert done.stderr == (f"error: {tmp_path / 'a.jsonl'}: gone since the set was packed; {GONE_REMEDY}\n")
    shutil.rmtree(out / "tokens")
    done = appended(out, sample / "new.jsonl")
    assert done.code == 2
    assert (
        done.stderr == f"error: {str(out / 'tokens')!r} holds no token store (no tokens.json); run hbpack tokenize\n"
    )


@pytest.fixture
def bare(sample, tmp_path) -> Path:
    """Journals, more texts than share a part with others, chats, and a tokenizer without a chat template."""
    folder = tmp_path / "bare"
    shutil.copytree(sample / "tokenizer", folder / "tokenizer")
    config = folder / "tokenizer" / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    del settings["chat_template"]
    config.write_text(json.dumps(settings))
    shutil.copy(sample / "journals.jsonl", folder)
    shutil.copy(sample / "new.jsonl", folder / "chats.jsonl")
    (folder / "texts.jsonl").write_text((sample / "journals.jsonl").read_text() * 4)
    return folder


NO_TEMPLATE = (
    "error: the data holds conversations, but the tokenizer has no chat template; give one with --chat-template, a "
    "Jinja file or a name such as chatml"
)


def test_an_error_after_the_first_part_leaves_the_set_as_it_was(bare):
    out = packed(bare, bare / "out", "journals.jsonl")
    before = tree(out)
    done = appended(out, bare / "texts.jsonl", bare / "chats.jsonl")
    assert (done.code, done.stderr.splitlines()[-1]) == (2, NO_TEMPLATE)
    assert tree(out) == before
    assert appended(out, bare / "texts.jsonl").code == 0
    assert current_tree(out) == current_tree(packed(bare, bare / "both", "journals.jsonl", "texts.jsonl"))


def test_an_error_after_a_part_was_made_anew_leaves_the_set_as_it_was(bare):
    names = ("journals.jsonl", "texts.jsonl")
    out = packed(bare, bare / "out", *names)
    before = tree(out)
    for path in (bare / name for name in names):
        path.write_text(path.read_text() * 2)
    options = ("--tokenizer", bare / "tokenizer", "--groups", "1k:1", "--gpus", 8, "--workers", 1, "--output", out)
    done = run(main, "pack", *(bare / name for name in names), bare / "chats.jsonl", *options)
    assert (done.code, done.stderr.splitlines()[-1]) == (2, NO_TEMPLATE)
    assert tree(out) == before
    packed(bare, out, *names)
    assert current_tree(out) == current_tree(packed(bare, bare / "new", *names))


def test_a_named_eos_token_stays_that_of_the_set(bare, tmp_path):
    """By the command line, a config file and the Python API alike."""
    import packer_cli as hbpack

    config = bare / "tokenizer" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token": None}))
    words = ("--tokenizer", bare / "tokenizer", "--groups", "1k:1", "--gpus", 8, "--workers", 1)
    named = ("--eos-token", "<|end|>")
    out = tmp_path / "out"
    done = run(main, "pack", bare / "journals.jsonl", *words, "--output", out)
    assert (done.code, out.exists()) == (2, False)
    assert done.stderr.splitlines()[-1].endswith("or leave them open with --append-eos never")
    assert run(main, "pack", bare / "journals.jsonl", *words, *named, "--output", out).code == 0
    done = appended(out, bare / "texts.jsonl")
    assert done.code == 0, done.stderr
    (tmp_path / "options.yaml").write_text("eos-token: <|end|>\n")
    both = (bare / "journals.jsonl", bare / "texts.jsonl")
    done = run(main, "pack", *both, *words, "--config", tmp_path / "options.yaml", "--output", tmp_path / "both")
    assert done.code == 0, done.stderr
    assert current_tree(out) == current_tree(tmp_path / "both")
    options = {"tokenizer": bare / "tokenizer", "groups": "1k:1", "gpus": 8, "workers": 1}
    hbpack.pack([*both], output=tmp_path / "api", **options, eos_token="<|end|>")
    assert current_tree(out) == current_tree(tmp_path / "api")
    done = run(main, "show", out)
    assert done.code == 0
    assert "may differ" not in done.stderr


def test_a_folder_that_cannot_be_written_to(sample, tmp_path, monkeypatch):
    out = packed(sample, tmp_path / "out", "old.jsonl")
    before, may = tree(out), os.access
    # A file system that is mounted read-only answers so to root too.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != out and may(path, mode))
    done = run(main, "append", out, sample / "new.jsonl")
    message = f"error: output folder '{out}': '{out}' cannot be written to; name another\n"
    assert (done.code, done.stderr) == (2, message)
    assert tree(out) == before
