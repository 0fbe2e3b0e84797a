"""What holds for every format: bytes, going on after a kill, damage and options; test_refused.py has the errors."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from uuid import uuid4

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from packer_cli.cli.main import main
from packer_cli.export.formats import FORMATS, load_format
from tests.cli_runner import run
from tests.export.conftest import SIZE, export, options_of, used
from tests.loader.packed_set import write_manifest
from tests.reference import home, tree

NAME = ".hbpack-export.json"

KILLED = """
import os, signal, sys, time
from packer_cli.export.formats import load_format
name, last, *arguments = sys.argv[1:]
format = type(load_format(name))
write = format.write_part
def killing(self, job, part, sink):
    done = write(self, job, part, sink)
    if part.number == int(last):  # Written, and without a marker.
        while not (job.folder / ".export" / f"part-{part.number - 1:05d}.json").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return done
format.write_part = killing
from packer_cli.cli.main import main
sys.argv = ["hbpack", *arguments]
main()
"""


def files(folder):
    """All files; XTuner's paths name the folder itself."""
    found = tree(folder)
    if "packs/paths.json" in found:
        found["packs/paths.json"] = found["packs/paths.json"].replace(str(folder).encode(), b"DIR")
        text = json.loads(found.pop(NAME))
        found[NAME] = {**text, "files": [file for file in text["files"] if file["path"] != "packs/paths.json"]}
    return found


def parts_of(folder):
    described = json.loads((folder / NAME).read_text())
    return [file for file in described["files"] if file["path"] not in ("index.json", "_metadata.json")]


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_do_not_depend_on_workers(source_of, exported, tmp_path, name):
    for workers in (1, 3):
        output = tmp_path / str(workers)
        assert export(source_of(name), name, output, *options_of(name), workers=workers).code == 0
        assert files(output) == files(exported(name))


@pytest.mark.parametrize("name", ["megatron", "trl", "nemo-rl", "mds"])
def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(source_of, exported, tmp_path, monkeypatch, name):
    output = tmp_path / "dir"
    command = ["export", source_of(name), "--to", name, "--output", output, *options_of(name), "--workers", 1]
    killed = subprocess.run([sys.executable, "-c", KILLED, name, "2", *map(str, command)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    markers = sorted(path.name for path in (output / ".export").glob("part-*"))
    assert markers == ["part-00000.json", "part-00001.json"]
    # Three files of parts, or none that is joined of them; nothing that vouches for the whole.
    assert len(list(output.glob("[!.]*"))) == (0 if name == "megatron" else 3)
    assert not (output / NAME).exists()
    exporter = type(load_format(name))
    write, written = exporter.write_part, []

    def noting(self, job, part, sink):
        written.append(part.number)
        return write(self, job, part, sink)

    monkeypatch.setattr(exporter, "write_part", noting)
    assert export(source_of(name), name, output, *options_of(name), workers=1).code == 0
    assert written == list(range(2, 1 + max(written)))
    assert len(written) > 1
    assert files(output) == files(exported(name))


@pytest.mark.parametrize("name", FORMATS)
def test_running_again_does_nothing(source_of, exported, name):
    folder = exported(name)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = export(source_of(name), name, folder, *options_of(name))
    assert (done.code, done.stderr.splitlines()[0]) == (0, "the export is up to date")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_damaged_file_is_written_again(source_of, exported, tmp_path, name, damage):
    output = shutil.copytree(exported(name), tmp_path / "dir")
    piece = parts_of(output)[1]
    path = output / piece["path"]
    if damage == "flip":
        data = bytearray(path.read_bytes())
        data[piece["num_bytes"] // 2] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    others = [
        p
        for p in output.glob("[!.]*")
        if p.is_file() and p not in (path, output / "pad.jsonl") and p.suffix not in (".idx", ".json", ".npy")
    ]
    before = {p: p.stat().st_mtime_ns for p in others}
    done = export(source_of(name), name, output, *options_of(name))
    assert "exported" in done.stderr
    assert files(output) == files(exported(name))
    if name != "megatron":
        assert {p: p.stat().st_mtime_ns for p in others} == before


@pytest.mark.parametrize("name", FORMATS)
def test_a_repair_that_ends_early_goes_on(source_of, exported, tmp_path, monkeypatch, name):
    """Before a file that is joined has its name again, and before there is a new listing."""
    output = shutil.copytree(exported(name), tmp_path / "dir")
    piece = parts_of(output)[1]
    path = output / piece["path"]
    data = bytearray(path.read_bytes())
    data[piece["num_bytes"] // 2] ^= 1
    path.write_bytes(data)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(load_format(name)), "finish", interrupted)
    assert export(source_of(name), name, output, *options_of(name), workers=1).code == 130
    monkeypatch.undo()
    assert export(source_of(name), name, output, *options_of(name), workers=1).code == 0
    found, wanted = files(output), files(exported(name))
    for each in (found, wanted):
        each.pop("packs/paths.json", None)  # They name the folder that was copied.
    assert found == wanted
    again = export(source_of(name), name, output, *options_of(name))
    assert again.stderr.splitlines()[0] == "the export is up to date"


@pytest.mark.parametrize("name", ["megatron", "parquet"])
def test_a_listing_of_another_release_vouches_for_no_file(packed, exported, tmp_path, name):
    output = shutil.copytree(exported(name), tmp_path / "dir")
    listing = json.loads((output / NAME).read_text())
    listing["files"][0]["offset"] = 0
    (output / NAME).write_text(json.dumps(listing))
    done = export(packed, name, output, *options_of(name))
    assert (done.code, "exported" in done.stderr) == (0, True)
    assert files(output) == files(exported(name))


def test_a_piece_that_is_damaged_before_it_is_joined_is_written_again(packed, exported, tmp_path):
    output = tmp_path / "array"
    assert export(packed, "megatron", output, *SIZE, "--shard", "0/2").code == 0
    piece = min(path for path in output.rglob("*") if ".bin." in path.name and path.is_file())
    piece.write_bytes(piece.read_bytes()[:-1])
    done = export(packed, "megatron", output, *SIZE, "--shard", "1/2")
    assert done.code == 1
    assert f"{str(piece)!r} is missing or damaged; run all tasks of the array again" in done.stderr
    for task in ("0/2", "1/2"):
        assert export(packed, "megatron", output, *SIZE, "--shard", task).code == 0
    assert files(output) == files(exported("megatron"))


def test_a_lost_index_is_written_again(packed, exported, tmp_path):
    output = shutil.copytree(exported("megatron"), tmp_path / "dir")
    (output / "tokens.idx").unlink()
    assert export(packed, "megatron", output, *SIZE).code == 0
    assert files(output) == files(exported("megatron"))


# Which rows


def pack_ids(folder):
    return [pack for file in sorted(folder.glob("*.parquet")) for pack in pq.read_table(file)["pack_id"].to_pylist()]


def test_the_parts_of_megatron_are_joined_also_behind_a_url(packed, exported, tmp_path):
    system, root = fsspec.filesystem("memory"), f"/megatron-{uuid4().hex}"
    for output in (tmp_path / "out", f"memory:/{root}"):
        done = run(main, "export", packed, "--to", "megatron", "--output", output, *SIZE, "--json")
        assert done.code == 0, done.stderr
        assert json.loads(done.stdout)["num_files"] == 4
    assert len(json.loads((tmp_path / "out" / NAME).read_text())["parts"]) > 1
    wanted = exported("megatron")
    for name in ("tokens.bin", "tokens.idx", "loss_mask.bin", "loss_mask.idx"):
        assert system.cat(f"{root}/{name}") == (wanted / name).read_bytes()
    system.rm(root, recursive=True)


def test_order_epoch_and_groups(packed, packs, tmp_path):
    group = {pack["pack_id"]: int(pack["group"]) for pack in packs}
    second = used(packed, 1)
    assert second != used(packed, 0)
    long = [pack for pack in used(packed, 0) if group[pack] == 1]
    cases = [
        (["--order", "packs"], sorted(group)),
        (["--epoch", "1"], second),
        (["--groups", "8k"], long),
        (["--groups", "8k:4"], long),
        (["--groups", "g1-8192-sp4"], long),
        (["--groups", "g1-8192-sp4, 1k:1"], used(packed, 0)),
        (["--groups", "1k", "--order", "packs"], sorted(pack for pack in group if group[pack] == 0)),
    ]
    for number, (options, expected) in enumerate(cases):
        output = tmp_path / str(number)
        assert export(packed, "parquet", output, *options).code == 0
        assert pack_ids(output) == expected, options


def test_an_epoch_that_was_not_written_is_that_of_the_loader(packed, tmp_path):
    pytest.importorskip("torch")
    from packer_cli.loader import PackedDataset

    found = []
    for rank in range(8):
        for batch in PackedDataset(packed, rank, 8, 7):
            if batch["sp_rank"] == 0 and batch["pack_id"] >= 0:
                found.append((batch["iteration"], batch["dp_rank"], batch["pack_id"]))
    expected = [pack for _, _, pack in sorted(found)]
    assert expected not in (used(packed, 0), used(packed, 1))
    assert export(packed, "parquet", tmp_path / "dir", "--epoch", 7).code == 0
    assert pack_ids(tmp_path / "dir") == expected


def test_an_epoch_that_was_over(packed, tmp_path):
    """As after the set was dealt to other GPUs."""
    other = home(shutil.copytree(packed, tmp_path / "other", symlinks=True))
    manifest = json.loads((other / "hbpack.json").read_text())
    manifest |= {"first_epoch": 1, "epochs": [{**manifest["epochs"][1], "first_step": 2}]}
    write_manifest(other / "hbpack.json", manifest)
    done = export(other, "parquet", tmp_path / "dir", "--epoch", 0)
    message = "--epoch 0 was over when the set was dealt to 8 GPUs; choose 1 or a later one"
    assert (done.code, done.stderr) == (2, f"error: {message}\n")
    done = export(other, "parquet", tmp_path / "dir", "--epoch", 2)
    assert "--epoch 2 would repeat a whole epoch, and this set holds none" in done.stderr
    assert export(other, "parquet", tmp_path / "dir").code == 0  # The first that is left.
    assert pack_ids(tmp_path / "dir") == used(packed, 1)
    done = export(other, "parquet", tmp_path / "dir", "--epoch", 1)
    assert done.code == 0
    assert done.stderr == (
        "epoch 1 is exported from step 2 on, at which the set was rebalanced; --order packs exports all packs\n"
        "the export is up to date\n"
    )


def test_rows_of_a_group_are_dealt_to_the_dp_ranks(packed, exported, packs):
    """Where no slot is a filler, row k of the export belongs to DP rank k mod N."""
    manifest = json.loads((packed / "hbpack.json").read_text())
    order = [pack for pack in used(packed, 0) if packs[pack]["group"] == 0]
    num_ranks = manifest["num_gpus"] // manifest["groups"][0]["sp_size"]
    assert len(order) % num_ranks == 0
    works = np.array([packs[pack]["attention_work"] for pack in order], dtype=float).reshape(-1, num_ranks)
    ratios = 1 - works.mean(axis=1) / works.max(axis=1)
    assert ratios.mean() < 0.1  # Balanced, as the plan made them.


# Errors


def test_options_in_a_config_file(packed, tmp_path):
    config = tmp_path / "export.yaml"
    config.write_text(f"to: parquet\noutput: {tmp_path / 'dir'}\ngroups: 8k\nepoch: 1\nshard-size: 1MB\n")
    done = run(main, "export", packed, "--config", config)
    assert done.code == 0, done.stderr
    assert json.loads((tmp_path / "dir" / NAME).read_text())["epoch"] == 1


def test_threads_share_the_shards(packed, packs):
    """Gathering is safe for several threads: each has what it asked for."""
    from packer_cli.engine.local import LocalEngine
    from packer_cli.export.packed import PackedSet
    from packer_cli.shards.manifest import read_manifest

    opened = PackedSet(home(packed), read_manifest(home(packed)), [0, 1], LocalEngine(1), ())
    failed = []

    def check(seed):
        wanted = np.random.default_rng(seed).integers(0, len(packs), 200)
        found = opened.lists("input_ids", wanted).values
        if not np.array_equal(found, np.concatenate([packs[pack]["input_ids"] for pack in wanted])):
            failed.append(seed)

    threads = [threading.Thread(target=check, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
