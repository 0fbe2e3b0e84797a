"""Commands from and to S3: the same files and batches as locally, however the storage behaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packer_cli.cli.main import main
from packer_cli.errors import BusyError
from packer_cli.export.binary import Megatron
from packer_cli.remote.path import RemotePath
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.versions import make_current
from tests.cli_runner import HBPACK, Done, run
from tests.remote.conftest import tree, upload
from tests.s3_server import S3Server

GROUPS = ("--groups", "1k:1,8k:2", "--gpus", 2)


@pytest.fixture(scope="module")
def corpus(repo: Path, tmp_path_factory: Any) -> Path:
    """Files of several formats, a record that is rejected, and what is no data."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("local") / "corpus"
    (folder / "more").mkdir(parents=True)
    with (repo / "examples" / "sample" / "chats.jsonl").open(encoding="utf-8") as file:
        lines = [next(file) for _ in range(30)]
    (folder / "chats.jsonl").write_text("".join([*lines, "{broken\n"]), encoding="utf-8")
    texts = [f"Sample {number}: {line}" for number, line in enumerate(lines)]
    (folder / "more" / "array.json").write_text(json.dumps([{"text": text} for text in texts]))
    pq.write_table(pa.table({"text": texts}), folder / "more" / "b.parquet", row_group_size=17)
    table = pa.table({"text": texts})
    with pa.ipc.new_file(folder / "more" / "c.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=13)
    (folder / "README.md").write_text("Not data.")
    (folder / "book.txt").write_text("A book. " * 300)
    return folder


def pack_words(repo: Path) -> list[object]:
    tokenizer = repo / "examples" / "sample" / "tokenizer"
    return ["--tokenizer", tokenizer, *GROUPS, "--workers", 1, "--shard-size", "64KiB"]


@pytest.fixture
def pack(hbpack: Callable[..., Done], repo: Path) -> Callable[..., Done]:
    def call(*arguments: object) -> Done:
        return hbpack("pack", *arguments, *pack_words(repo))

    return call


@pytest.fixture(scope="module")
def packed(running: S3Server, corpus: Path, repo: Path) -> Path:
    """The corpus packed locally; not to be changed."""
    folder = corpus.parent / "out"
    assert run(main, "pack", f"{corpus}/", "--output", folder, *pack_words(repo)).code == 0
    return folder


def same(got: dict[str, bytes], wanted: dict[str, bytes], bucket: RemotePath, local: Path) -> None:
    """The same files, but for the names of inputs, and thus the checksums of the files that hold them."""
    assert got.keys() == wanted.keys()
    for name, data in wanted.items():
        if Path(name).suffix in (".json", ".jsonl"):
            data = data.replace(str(local).encode(), str(bucket).encode())
            found = [re.sub(rb'"(xxh3|num_bytes)": [^,\n]*', b"", each) for each in (got[name], data)]
            assert found[0] == found[1], name
        else:
            assert got[name] == data, name


def test_the_same_set_from_and_to_s3_that_fails(
    s3: S3Server, bucket: RemotePath, packed: Path, pack: Callable[..., Done], hbpack: Any, tmp_path: Path
) -> None:
    corpus, out = packed.parent / "corpus", shutil.copytree(packed, tmp_path / "out", symlinks=True)
    upload(corpus, bucket / "corpus")
    s3.faults = 0
    with s3.failing(slow_down=0.05, cut=0.1):
        done = pack(f"{bucket}/corpus/", "--output", bucket / "out")
        assert (done.code, "warning" in done.stderr) == (0, False)
        assert s3.faults > 10
        assert hbpack("verify", bucket / "out", "--workers", 1).stdout.startswith(f"{bucket}/out is sound: ")
        shown = hbpack("show", bucket / "out")
        local = hbpack("show", out).stdout.replace(str(out), "OUT")
        assert shown.stdout.replace(str(bucket / "out"), "OUT").replace(str(bucket), str(corpus.parent)) == local
        stats = hbpack("stats", bucket / "out").stdout
        assert stats.replace(str(bucket / "out"), "OUT") == hbpack("stats", out).stdout.replace(str(out), "OUT")
        remote, local = bucket / "exported", tmp_path / "exported"
        assert hbpack("export", bucket / "out", "--to", "mds", "--output", remote, "--workers", 1).code == 0
        assert hbpack("rebalance", bucket / "out", "--gpus", 4).code == 0
        again = pack(f"{bucket}/corpus/", "--output", bucket / "out")
        assert "the shards are up to date, rebalanced to 4 GPUs" in again.stderr
    assert hbpack("export", out, "--to", "mds", "--output", local, "--workers", 1).code == 0
    assert hbpack("rebalance", out, "--gpus", 4).code == 0
    same(tree(bucket / "out"), tree(out), bucket, corpus.parent)
    found, wanted = tree(remote), tree(local)
    header = ".hbpack-export.json"
    assert json.loads(found.pop(header)).keys() == json.loads(wanted.pop(header)).keys()
    assert found == wanted


def test_a_loader_reads_the_same_batches_through_faults(
    s3: S3Server, bucket: RemotePath, packed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from packer_cli.loader import PackedDataset

    upload(packed, bucket / "out")
    with s3.failing(slow_down=0.05, cut=0.1):
        data = PackedDataset(f"{bucket}/out", 0, 2, cache_dir=tmp_path / "own", verify="full")
        found, wanted = list(data), list(PackedDataset(packed, 0, 2))
    assert len(found) == len(wanted) > 1
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(str(ours[key]) == str(theirs[key]) for key in ours)
        assert ours["input_ids"].equal(theirs["input_ids"])


@pytest.mark.slow
def test_stages_and_mixed_places(
    s3: S3Server, bucket: RemotePath, corpus: Path, packed: Path, hbpack: Any, repo: Path, tmp_path: Path
) -> None:
    """Each stage alone, tasks of an array, and a plan here of tokens there."""
    tokenizer, out = repo / "examples" / "sample" / "tokenizer", bucket / "out"
    for index in (1, 0):
        words = ["--tokenizer", tokenizer, "--output", out, "--workers", 1, "--shard", f"{index}/2"]
        assert hbpack("tokenize", f"{corpus}/", *words).code == 0
    assert hbpack("plan", out, *GROUPS).code == 0
    for index in (1, 0):
        assert hbpack("write", out, "--workers", 1, "--shard-size", "64KiB", "--shard", f"{index}/2").code == 0
    assert tree(out) == tree(packed)
    here = tmp_path / "here"
    assert hbpack("plan", out, *GROUPS, "--output", here).code == 0
    assert hbpack("write", here, "--workers", 1, "--shard-size", "64KiB").code == 0
    written, planned = tree(here), tree(packed)
    shards = [name for name in planned if "/shards/" in name]
    assert shards
    assert all(written[name] == planned[name] for name in shards)


@pytest.mark.slow
def test_a_validation_set_follows_on_s3(
    s3: S3Server, bucket: RemotePath, corpus: Path, pack: Callable[..., Done], hbpack: Any, tmp_path: Path
) -> None:
    out, here = bucket / "out", tmp_path / "here"
    for folder in (out, here):
        assert pack(f"{corpus}/", "--output", folder, "--validation", "20%").code == 0
        assert hbpack("rebalance", folder, "--gpus", 4).code == 0
    assert tree(out) == tree(here)
    assert hbpack("verify", out, "--workers", 1).code == 0
    assert pack(f"{corpus}/", "--output", out).code == 0
    assert not any(name.startswith("validation/") for name in tree(out))
    version = json.loads((out / "hbpack.json").read_bytes())["folder"]
    assert {name.split("/")[1] for name in tree(out) if name.startswith(f"{version}/")} == {
        "hbpack.json", "plan.arrow", "ranks", "rejected.jsonl", "shards", "store.json",
    }  # fmt: skip


def test_damage_is_found_and_repaired(s3: S3Server, bucket: RemotePath, packed: Path, hbpack: Any) -> None:
    out: Any = bucket / "out"
    upload(packed, out)
    before = tree(out)
    shard = next(name for name in before if "/shards/" in name)
    data = bytearray(before[shard])
    data[len(data) // 2] ^= 1
    (out / shard).write_bytes(bytes(data))
    rank = next(name for name in before if "rank-" in name)
    (out / rank).unlink()
    done = hbpack("verify", out, "--workers", 1)
    assert done.code == 1
    paths = [name.partition("/")[2] for name in (shard, rank)]  # In the version's folder.
    assert f"{paths[0]}: its checksum is " in done.stdout
    assert f"{paths[1]}: it is missing; run hbpack write {out}\n" in done.stdout
    done = hbpack("verify", out, "--workers", 1, "--repair")
    assert (done.code, done.stdout.count("repaired: "), f"{out} is sound: " in done.stdout) == (0, 2, True)
    assert tree(out) == before


def test_two_writers(s3: S3Server, bucket: RemotePath, corpus: Path, pack: Callable[..., Done]) -> None:
    from packer_cli.folder_lock import lock_folder

    out: Any = bucket / "out"
    with lock_folder(out):
        done = pack(f"{corpus}/", "--output", out)
    assert (done.code, done.stdout) == (os.EX_TEMPFAIL, "")
    text = re.sub(r"\(process .* ago\)", "(process P on H)", done.stderr)
    assert text == (
        f"error: output folder '{out}': another hbpack run writes to it (process P on H); wait until that has ended, "
        "or name another folder\n"
    )
    assert out.find() == {}


@pytest.mark.parametrize("moment", [4, *(pytest.param(moment, marks=pytest.mark.slow) for moment in range(1, 20))])
def test_a_killed_run_goes_on(
    s3: S3Server, bucket: RemotePath, corpus: Path, packed: Path, pack: Callable[..., Done], repo: Path, moment: int
) -> None:
    """Killed after so many objects were written."""
    words = ["pack", f"{corpus}/", *pack_words(repo)]
    before = len(s3.requests)
    process = subprocess.Popen([*HBPACK, *map(str, words), "--output", str(bucket / "out")], stderr=subprocess.DEVNULL)
    while sum(line.startswith("PUT") for line in s3.requests[before:]) < moment and process.poll() is None:
        time.sleep(0.002)
    process.kill()  # It may have ended.
    process.wait()
    assert pack(f"{corpus}/", "--output", bucket / "out").code == 0
    assert tree(bucket / "out") == tree(packed)


@pytest.mark.slow
def test_a_part_is_not_taken_for_one_of_another_run(
    s3: S3Server, bucket: RemotePath, corpus: Path, packed: Path, pack: Callable[..., Done]
) -> None:
    """Its name, its size and its marker are an earlier run's; its contents were written by a run that was killed."""
    out: Any = bucket / "out"
    assert pack(f"{corpus}/", "--output", out).code == 0
    name = next(name for name in out.find() if name.startswith("tokens/part-"))
    (out / "tokens" / ".parts" / "tokens.json").write_bytes((out / "tokens" / "tokens.json").read_bytes())
    (out / "tokens" / "tokens.json").unlink()  # As a run does before it changes anything.
    data = bytearray((out / name).read_bytes())
    data[len(data) // 2] ^= 1
    (out / name).write_bytes(bytes(data))
    assert pack(f"{corpus}/", "--output", out).code == 0
    assert tree(out) == tree(packed)


def test_errors_are_one_line(s3: S3Server, bucket: RemotePath, hbpack: Any, monkeypatch: Any, repo: Path) -> None:
    words = ["--tokenizer", repo / "examples" / "sample" / "tokenizer", "--output", bucket / "out", "--workers", 1]
    lines = {
        f"{bucket}/no/": f"{bucket}/no/: no such file or folder; check the address",
        "s3://nowhere-at-all/a.jsonl": "s3://nowhere-at-all/a.jsonl: no such file or folder; check the address",
        "none://a": "'none://a' cannot be opened: Protocol not known: none; check the address",
    }
    for name, line in lines.items():
        assert hbpack("tokenize", name, *words) == (2, "", f"error: {line}\n")
    assert hbpack("verify", bucket / "no") == (
        2,
        "",
        f"error: '{bucket}/no' holds no packed data set (no hbpack.json); check the address\n",
    )
    out = bucket / "m"
    (out / "other.txt").write_bytes(b"x")
    assert hbpack("tokenize", f"{bucket}/m", *words[:2], "--output", out) == (
        2,
        "",
        f"error: output folder '{out}' holds something else (other.txt); name an empty or a new folder\n",
    )
    with s3.failing(slow_down=1.0):
        done = hbpack("stats", bucket / "out")
    assert done.code == os.EX_TEMPFAIL
    said, number, error = done.stderr.splitlines()
    assert said.startswith(s3.url.removeprefix("http://"))
    assert said.endswith("; trying again")
    assert number.startswith("other work: ")
    assert error.startswith(f"error: '{bucket}/out' could not be read in 6 tries (")
    assert error.endswith("); check the network and the address, then run again")


def test_megatron_files_are_joined(
    s3: S3Server, bucket: RemotePath, packed: Path, hbpack: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Files that all parts share: from one run, from the tasks of an array, and after a kill."""
    near = tmp_path / "near"
    words = ("export", packed, "--to", "megatron", "--workers", 1)
    monkeypatch.setattr(Megatron, "shard_size", 2**14)
    assert hbpack(*words, "--output", near).code == 0
    wanted = tree(near)
    one, array = bucket / "one", bucket / "array"
    with s3.failing(slow_down=0.05, cut=0.1):
        assert hbpack(*words, "--output", one).code == 0
        assert tree(one) == wanted
        assert "the export is up to date" in hbpack(*words, "--output", one).stderr
        for task in ("1/2", "0/2"):
            assert hbpack(*words, "--output", array, "--shard", task).code == 0
    assert tree(array) == wanted
    name = next(name for name in wanted if name.endswith(".idx"))
    (one / name).unlink()
    assert hbpack(*words, "--output", one).code == 0
    assert tree(one) == wanted
    killed = bucket / "killed"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", stop)
        assert hbpack(*words, "--output", killed).code == 130
    pieces = [name for name in killed.find() if ".bin." in name]
    assert len(pieces) > 4
    (killed / pieces[0]).write_bytes(b"x" * (killed / pieces[0]).stat().st_size)
    assert hbpack(*words, "--output", killed).code == 0
    assert tree(killed) == wanted


def test_another_run_makes_a_version_the_current_one(bucket: RemotePath, packed: Path, monkeypatch: Any) -> None:
    manifest = read_manifest(packed)
    monkeypatch.setattr(RemotePath, "write_over", lambda *_: False)
    message = f"another run has written '{bucket}/out/hbpack.json' meanwhile; run again"
    with pytest.raises(BusyError, match=re.escape(message)):
        make_current(bucket / "out", bucket / "out" / ("a" * 32), manifest, "write")


@pytest.mark.slow
def test_a_list_of_objects(
    repo: Path, corpus: Path, bucket: RemotePath, hbpack: Callable[..., Done], tmp_path: Path
) -> None:
    """A list that `hbpack init` writes has the ETags of objects, and a run refuses another version."""
    upload(corpus, bucket / "data")
    listed, config = tmp_path / "inputs.jsonl", tmp_path / "hbpack.yaml"
    done = hbpack("init", bucket / "data", "--list", listed, "--output", config)
    assert done.code == 0, done.stderr
    entries = [json.loads(line) for line in listed.read_text().splitlines()]
    assert all(each["path"].startswith(f"{bucket}/data/") and each["etag"] and "xxh3" not in each for each in entries)
    words = ("tokenize", "--inputs", listed, "--tokenizer", repo / "examples/sample/tokenizer", "--workers", 1)
    assert hbpack(*words, "--output", tmp_path / "S").code == 0
    assert hbpack("tokenize", bucket / "data", *words[3:], "--output", tmp_path / "T").code == 0
    stores = [json.loads((tmp_path / name / "tokens/tokens.json").read_text()) for name in "ST"]
    assert stores[0]["fingerprint"] == stores[1]["fingerprint"]
    book = bucket / "data/book.txt"
    book.write_bytes(book.read_bytes().replace(b"A book", b"A Book"))
    done = hbpack(*words, "--output", tmp_path / "U")
    assert (done.code, (tmp_path / "U").exists()) == (2, False)
    assert re.search(r"^error: s3://\S+/data/book.txt: its ETag is \w+, and \w+ in the list of inputs", done.stderr)
