"""What every command makes of a set that was written with `--index-only`."""

from __future__ import annotations

import filecmp
import json
import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from packer_cli.loader import PackedDataset
from tests.cli_runner import run
from tests.index_only.conftest import pack
from tests.index_only.test_loading import batches, is_same
from tests.reference import home, remove_written, store_parts, tree


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_shards_hold_no_tokens(written, indexed):
    assert size(home(indexed) / "shards") < size(home(written) / "shards") / 5
    assert store_parts(indexed)
    for part in store_parts(indexed):  # Links, which take no space.
        assert part.samefile(home(indexed) / part.relative_to(indexed))
    for folders in ((written, indexed), (home(written), home(indexed))):
        of_each = [
            {key: value for key, value in tree(folder).items() if key.startswith(("plan.arrow", "rejected.jsonl"))}
            for folder in folders
        ]
        assert len(of_each[0]) == 2
        assert of_each[0] == of_each[1]
    assert tree(written / "tokens") == tree(indexed / "tokens")


def test_verify_and_stats(written, indexed):
    for options in ([], ["--fast"]):
        done = run(main, "verify", indexed, *options)
        assert done.code == 0, done.stderr
        assert (
            done.stdout.split(" (")[0].split(" ", 1)[1]
            == (run(main, "verify", written, *options).stdout.split(" (")[0].split(" ", 1)[1])
        )
    for command in ("stats", "show"):
        of_each = [run(main, command, folder).stdout.replace(str(folder), "OUT") for folder in (indexed, written)]
        assert of_each[0] == of_each[1]


@pytest.mark.parametrize("name", ["megatron", "trl", "parquet"])
def test_exports_are_the_same(written, indexed, tmp_path, name):
    for folder in (written, indexed):
        done = run(main, "export", folder, "--to", name, "--output", tmp_path / folder.parent.name, "--workers", 1)
        assert done.code == 0, done.stderr
    first, second = tmp_path / written.parent.name, tmp_path / indexed.parent.name
    names = [path.name for path in first.iterdir() if not path.name.startswith(".")]
    assert names
    assert filecmp.cmpfiles(first, second, names, shallow=False)[0] == names


def test_verify_finds_what_is_damaged_and_write_repairs_it(own, indexed):
    shard = home(own) / "shards" / "g0-1024-sp1" / "shard-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    done = run(main, "verify", own)
    assert done.code == 1
    assert "shards/g0-1024-sp1/shard-00000.arrow" in done.stdout + done.stderr
    assert run(main, "write", own, "--workers", 1).code == 0
    assert tree(own) == tree(indexed)
    shutil.rmtree(own / "tokens")
    done = run(main, "verify", own)
    assert done.code == 1
    assert "tokens/tokens.json" in done.stdout + done.stderr


def test_tokens_that_training_reads_are_verified_and_repaired(own, indexed, repo):
    """A part that only the version has, and then the one file of both."""
    store = store_parts(own)[0]
    part = home(own) / store.relative_to(own)
    for path, repair in (
        (part, lambda: run(main, "write", own)),
        (store, lambda: pack(repo, own, "--index-only")),
    ):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        done = run(main, "verify", own)
        assert (done.code, f"tokens/{part.name}: its checksum is " in done.stdout) == (1, True)
        assert repair().code == 0
        assert part.samefile(store)
        assert tree(own) == tree(indexed)


def test_a_copy_of_a_version_is_a_set(own, tmp_path):
    assert run(main, "verify", home(own).rename(tmp_path / "copy")).code == 0


def test_an_export_of_a_damaged_token_store(own, tmp_path):
    part = home(own) / store_parts(own)[0].relative_to(own)
    size = part.stat().st_size
    part.write_bytes(part.read_bytes()[:-1])
    done = run(main, "export", own, "--to", "trl", "--output", tmp_path / "export", "--workers", 1)
    assert (done.code, done.stdout, done.stderr.splitlines()[-1]) == (
        1,
        "",
        (
            f"error: token store part '{part}' is damaged ({size - 1} bytes, hbpack.json says {size}); run hbpack "
            "pack again"
        ),
    )


def test_write_makes_the_other_beside_the_one(own, written, indexed):
    assert run(main, "write", own, "--no-index-only", "--workers", 1).code == 0
    assert tree(own) == tree(indexed) | tree(written)
    assert run(main, "write", own, "--index-only", "--workers", 1).code == 0
    assert tree(own) == tree(written) | tree(indexed)


def test_an_array_writes_the_same(own, indexed):
    remove_written(own)
    for task in (1, 0):
        done = run(main, "write", own, "--index-only", "--shard-size", "300kB", "--shard", f"{task}/2")
        assert done.code == 0, done.stderr
    assert tree(own) == tree(indexed)


def test_rebalance_and_append(own, written, repo, tmp_path):
    other = shutil.copytree(written, tmp_path / "other", symlinks=True)
    for folder in (own, other):
        assert run(main, "rebalance", folder, "--gpus", 4).code == 0
    for first, second in zip(batches(PackedDataset(own, 1, 4)), batches(PackedDataset(other, 1, 4)), strict=True):
        assert is_same(first, second)
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": "More of it."}) + "\n")
    assert run(main, "append", own, tmp_path / "new.jsonl", "--workers", 1).code == 0
    manifest = json.loads((own / "hbpack.json").read_text())
    assert manifest["config"]["write"]["index_only"]
    assert run(main, "verify", own).code == 0


def test_the_token_store_must_stay(own, repo, tmp_path):
    done = pack(repo, tmp_path / "out", "--index-only", "--no-keep-tokens")
    assert (done.code, done.stderr) == (
        2,
        "error: --index-only reads the token store while training; leave out --no-keep-tokens\n",
    )
    assert not (tmp_path / "out").exists()
    done = run(main, "write", own, "--no-keep-tokens")
    assert done.code == 2
    assert done.stderr == (
        "error: the set was written with --index-only, so training reads its token store; leave out --no-keep-tokens\n"
    )
    done = run(main, "plan", own, "--groups", "8k", "--gpus", 2, "--overflow", "split", "--output", tmp_path / "plan")
    assert done.code == 0, done.stderr
    done = run(main, "write", tmp_path / "plan", "--index-only")
    assert done.code == 2
    assert done.stderr == (
        "error: --index-only needs the token store in the folder of the set, but the plan's is "
        f"{str(own / 'tokens')!r}; run hbpack plan there, without --output\n"
    )


def test_remote_folders_are_refused_before_any_work(repo):
    done = pack(repo, "memory://bucket/out", "--index-only")
    assert done.code == 2
    assert done.stderr == (
        "error: memory://bucket/out: with --index-only the loader maps the token store into memory, so name a local "
        "folder\n"
    )
