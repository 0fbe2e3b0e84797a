"""`pack` and `PackedSet`: the bytes and figures of the commands, without a word."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

import packer_cli as hbpack
from tests.api.conftest import GROUPS
from tests.reference import tree


def test_the_bytes_are_those_of_the_command(packed, corpus, sample, command, tmp_path):
    done = command(
        "pack", corpus, "--tokenizer", sample / "tokenizer", "--groups", GROUPS["groups"], "--gpus", GROUPS["gpus"],
        "--workers", 1, "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert tree(tmp_path / "out") == tree(packed.path)


def test_a_set_gives_its_figures(packed, command):
    opened = hbpack.PackedSet(str(packed.path))
    done = command("stats", packed.path, "--json")
    for each in (packed, opened):
        assert json.loads(json.dumps(each.stats().values())) == json.loads(done.stdout)
    manifest = opened.manifest()
    assert manifest.metrics == packed.plan().metrics == opened.plan().metrics
    assert manifest.num_gpus == GROUPS["gpus"]
    assert sum(len(batch.samples) for each in opened.plan().iterations() for batch in each.micro_batches) == 100
    assert repr(opened) == f"PackedSet({str(packed.path)!r})"


def test_a_dry_run_predicts(corpus, sample, tmp_path):
    options = {"output": tmp_path, "tokenizer": sample / "tokenizer", "workers": 1, "schema": "messages", **GROUPS}
    found = hbpack.pack([corpus], dry_run=True, **options)
    made = hbpack.pack([corpus], dry_run=False, **options).plan().counts
    assert (found.records, found.samples, found.tokens) == (made.records, made.samples, made.tokens)


def test_a_dry_run_writes_nothing(corpus, sample, tmp_path):
    hbpack.pack([corpus], output=tmp_path, tokenizer=sample / "tokenizer", dry_run=True, workers=1, **GROUPS)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("nowhere.jsonl", {}, "nowhere.jsonl: no such file or directory, "),
        ([], {}, "INPUT is required"),
        ("corpus", {"schema": "xml"}, "--schema: unknown record schema 'xml'; known: auto, "),
        ("corpus", {"engine": "cloud"}, "--engine: unknown engine 'cloud'; choose local, ray or ray:ADDRESS"),
        ("corpus", {"tokeniser": "x"}, "pack() has no option 'tokeniser' (did you mean 'tokenizer'?)"),
        ("corpus", {"index_only": True, "keep_tokens": False}, "--index-only reads the token store while training; "),
    ],
)
def test_what_is_wrong_is_one_line(inputs, options, message, corpus, sample, tmp_path):
    given = {"tokenizer": sample / "tokenizer", "output": tmp_path / "out", "workers": 1, **GROUPS, **options}
    with pytest.raises(hbpack.HbpackError) as error:
        hbpack.pack(corpus if inputs == "corpus" else inputs, **given)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_script_without_a_guard_runs_once_and_prints_nothing_else(packed, corpus, sample, tmp_path):
    """Workers do not import the main script: each would pack again."""
    (tmp_path / "script.py").write_text(
        textwrap.dedent(f"""
            import packer_cli as hbpack

            print("begin")
            made = hbpack.pack(
                {str(corpus)!r}, output="out", tokenizer={str(sample / "tokenizer")!r}, workers=2, **{GROUPS!r}
            )
            print(made.manifest().fingerprint)
        """)
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["begin", packed.manifest().fingerprint]
