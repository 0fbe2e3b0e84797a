"""`hbpack show` on remote, incomplete and damaged sets, and asked for what is not there."""

from __future__ import annotations

import json
import re
import shutil
import sys
from uuid import uuid4

import fsspec

from packer_cli.cli.main import main
from tests.cli.show.conftest import views_of
from tests.cli_runner import run
from tests.loader.packed_set import write_manifest
from tests.reference import home, rank_rows


def test_without_the_token_store_the_source_is_named(copy, corpus):
    shutil.rmtree(copy / "tokens")
    [view] = views_of(copy, "--sample", 3)
    [sample] = view["samples"]
    assert (sample["file"], sample["line"], sample["source"]) == (None, None, str(corpus[0]))
    assert f"   id 3, {corpus[0]}, " in run(main, "show", copy, "--sample", 3).stdout


def test_a_token_store_that_was_made_anew_is_not_believed(copy):
    """The version has the index of its own tokens; without it, their lines are unknown."""
    before = views_of(copy, "--sample", 3)
    assert before[0]["samples"][0]["line"] is not None
    index = json.loads((copy / "tokens" / "tokens.json").read_text())
    write_manifest(copy / "tokens" / "tokens.json", index | {"fingerprint": "another"})
    assert views_of(copy, "--sample", 3) == before
    (home(copy) / "store.json").unlink()
    [view] = views_of(copy, "--sample", 3)
    assert view["samples"][0]["line"] is None


def test_a_remote_set_looks_the_same(packed):
    system = fsspec.filesystem("memory")
    root = f"/show-{uuid4().hex}"
    system.put(str(packed), root, recursive=True)
    try:
        for arguments in (("--rank", 3), ("--sample", 0), ("--pack", 2), ("--epoch", 3, "--iteration", 1)):
            remote = run(main, "show", f"memory:/{root}/", *arguments)
            local = run(main, "show", packed, *arguments)
            assert remote.stdout.splitlines()[:-1] == local.stdout.splitlines()[:-1]
            assert remote.code == 0
        own = f"{root}/{home(packed).name}"
        system.rm(f"{own}/shards", recursive=True)
        done = run(main, "show", f"memory:/{root}")
        assert done.code == 1
        assert re.fullmatch(rf"error: 'memory:/{own}/shards/.*arrow' is missing; copy the set again\n", done.stderr)
    finally:
        system.rm(root, recursive=True)
    done = run(main, "show", "memory://nowhere")
    assert (done.code, done.stderr) == (
        2,
        "error: 'memory://nowhere' holds no packed data set (no hbpack.json); check the address\n",
    )


def test_s3_without_what_reads_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    done = run(main, "show", "s3://bucket/out")
    assert (done.code, done.stderr) == (2, "error: 's3://bucket/out' needs s3fs: pip install 'hbpack[remote]'\n")


def test_the_last_epoch_is_shown(packed):
    [view] = views_of(packed, "--epoch", 2**31 - 1)
    assert view["place"]["epoch"] == 2**31 - 1


def test_wrong_places(packed):
    rows = rank_rows(packed, 0)
    iterations, steps = len(rows), rows[-1]["step"] + 1
    packs = sum(group["num_packs"] for group in json.loads((packed / "hbpack.json").read_text())["groups"])
    for arguments, message in {
        ("--step", steps): f"--step must be from 0 to {steps - 1}, got {steps}: those are the steps of epoch 0",
        ("--step", -1): f"--step must be from 0 to {steps - 1}, got -1: those are the steps of epoch 0",
        (
            "--iteration",
            iterations,
        ): f"--iteration must be from 0 to {iterations - 1}, got {iterations}: those are the iterations of epoch 0",
        ("--rank", 8): "--rank must be from 0 to 7, got 8: the set is for 8 GPUs",
        ("--rank", -1): "--rank must be from 0 to 7, got -1: the set is for 8 GPUs",
        ("--epoch", -1): "--epoch must be at least 0, got -1",
        ("--epoch", 10**20): f"--epoch must be at most 2147483647, got {10**20}",
        ("--rank", 10**20): f"--rank must be from 0 to 7, got {10**20}: the set is for 8 GPUs",
        ("--pack", 10**20): f"--pack must be from 0 to {packs - 1}, got {10**20}: the set has {packs} packs",
        ("--sample", 10**20): f"--sample {10**20} is in no pack; sample ids are the row numbers of the token store, "
        "here 0 to 181, and some may be left out (see rejected.jsonl, and weights as in PATH@0.5)",
        ("--pack", packs): f"--pack must be from 0 to {packs - 1}, got {packs}: the set has {packs} packs",
        ("--sample", 999): "--sample 999 is in no pack; sample ids are the row numbers of the token store, here 0 to "
        "181, and some may be left out (see rejected.jsonl, and weights as in PATH@0.5)",
        ("--pack", 0, "--rank", 1): "--pack says what to show; leave out --rank",
        ("--sample", 0, "--pack", 1): "--sample says what to show; leave out --pack",
        ("--step", 0, "--iteration", 0): "--iteration counts through the epoch and says its step; leave out --step",
        ("--tokenizer", "./none"): "./none: no such file or folder; a tokenizer is a folder with tokenizer.json, a "
        "tokenizer.json, a SentencePiece .model, a vocab.json beside its merges.txt, or a Hugging Face name",
    }.items():
        done = run(main, "show", packed, *arguments)
        assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n"), arguments


def test_what_is_no_set_yet(copy):
    """The error names the command that comes next, or the set around a token store."""

    def why(folder):
        done = run(main, "show", folder)
        assert done.code == 2
        return done.stderr.removeprefix(f"error: '{folder}' holds no packed data set (no hbpack.json); ")

    assert why(copy / "tokens") == f"name '{copy}', whose token store it is\n"
    (copy / "hbpack.json").unlink()
    assert why(copy) == why(copy / "tokens") == f"run hbpack write {copy}\n"
    (copy / "plan.arrow").unlink()
    again = f"run hbpack plan {copy} --groups GROUPS --gpus N, then hbpack write {copy}\n"
    assert why(copy) == why(copy / "tokens") == again
    (copy / "tokens" / "tokens.json").unlink()
    assert why(copy) == "run hbpack pack\n"


def test_no_set_and_a_damaged_one(copy, tmp_path):
    done = run(main, "show", tmp_path / "none")
    assert (done.code, done.stderr) == (
        2,
        f"error: '{tmp_path / 'none'}' holds no packed data set (no hbpack.json); run hbpack pack\n",
    )
    for path in home(copy).glob("shards/*/*.arrow"):
        path.write_bytes(path.read_bytes()[:-100])
    done = run(main, "show", copy)
    assert (done.code, done.stdout) == (1, "")
    assert re.fullmatch(
        r"error: '.*/shard-00000.arrow' is damaged \(.*\); run hbpack write, which "
        r"writes it again\n",
        done.stderr,
    )
    path = home(copy) / "ranks" / "epoch-000" / "rank-00000.arrow"
    path.unlink()
    done = run(main, "show", copy)
    assert (done.code, done.stderr) == (1, f"error: '{path}' is missing; run hbpack write, which writes it again\n")
