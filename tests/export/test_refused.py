"""What every export refuses: options, folders, and sets that are damaged or not there."""

from __future__ import annotations

import json
import os
import shutil
from types import SimpleNamespace

import pyarrow as pa
import pytest

from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.export.formats import FORMATS
from packer_cli.export.options import check_one_capacity
from packer_cli.folder_lock import lock_folder
from packer_cli.plan.core.groups import Group
from tests.cli_runner import run
from tests.export.conftest import FILLED, SIZE, export
from tests.loader.packed_set import write_manifest
from tests.reference import home, tree


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--to", "tfds"],
            (
                "--to: unknown format 'tfds'; known: megatron, nemo, nemo-rl, automodel, trl, llamafactory, ms-swift, "
                "xtuner, parquet, mds"
            ),
        ),
        (
            ["--groups", "2k"],
            "--groups: '2k' is not a group of this set; it has 1k:1 (g0-1024-sp1), 8k:4 (g1-8192-sp4)",
        ),
        (
            ["--groups", "8k:1"],
            "--groups: '8k:1' is not a group of this set; it has 1k:1 (g0-1024-sp1), 8k:4 (g1-8192-sp4)",
        ),
        (["--shard-size", "1"], "--shard-size must be at least 65536, got 1"),
        (
            ["--shard-size", "much"],
            "--shard-size: 'much' is not a number of bytes; write for example 1048576, 256MiB or 1GB",
        ),
        (
            ["--to", "mds", "--shard-size", "3GiB"],
            "--shard-size must be at most 2147483648 for mds, got 3221225472",
        ),
        (
            ["--epoch", 2**31],
            "--epoch must be at most 2147483647, got 2147483648",
        ),
        (
            ["--order", "random"],
            "invalid value for '--order': 'random' is not one of 'use', 'packs'; see hbpack export --help",
        ),
    ],
)  # fmt: skip
def test_wrong_options(packed, tmp_path, options, message):
    done = run(main, "export", packed, "--to", "trl", "--output", tmp_path / "dir", *options)
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert not (tmp_path / "dir").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_takes_trees(packed, tmp_path, name):
    source = shutil.copytree(packed, tmp_path / "set", symlinks=True)
    file = home(source) / "hbpack.json"
    manifest = json.loads(file.read_text())
    write_manifest(file, manifest | {"counts": manifest["counts"] | {"items": {}}})
    done = export(source, name, tmp_path / "dir")
    message = (
        f"error: {str(source)!r} has preference pairs, groups or turns, which share prefixes, and exports have no "
        'place for these: train on it with PackedDataset(..., format="tree"), or pack data without pairs and groups, '
        "and with --turns whole\n"
    )
    assert (done.code, done.stdout, done.stderr) == (2, "", message)
    assert not (tmp_path / "dir").exists()


@pytest.mark.parametrize("name", FILLED)
def test_rows_of_one_length_and_groups_of_several(packed, tmp_path, name):
    done = export(packed, name, tmp_path / "dir")
    message = (
        f"error: --to {name} takes groups of one capacity, and 1k:1, 8k:4 have different ones; export each to its own "
        "folder, the first with --groups 1k:1\n"
    )
    assert (done.code, done.stdout, done.stderr) == (2, "", message)
    assert not (tmp_path / "dir").exists()


def test_groups_of_equal_capacity_go_by_the_names_of_their_folders():
    groups = [Group(capacity=6144, pp_size=2), Group(capacity=8192, cp_size=2), Group(capacity=8192, tp_size=2)]
    manifest = SimpleNamespace(
        groups=[
            SimpleNamespace(name=f"g{i}-{group.capacity}-{group.layout}", capacity=group.capacity, sp_size=1)
            for i, group in enumerate(groups)
        ]
    )
    with pytest.raises(ConfigError) as raised:
        check_one_capacity("xtuner", manifest, [0, 1, 2])
    assert str(raised.value) == (
        "--to xtuner takes groups of one capacity, and g0-6144-sp1-pp2, g1-8192-sp1-cp2, g2-8192-sp1-tp2 have "
        "different ones; export each to its own folder, the first with --groups g0-6144-sp1-pp2"
    )


def test_no_packed_set(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        done = export(tmp_path / name, "trl", tmp_path / "dir")
        message = f"error: {str(tmp_path / name)!r} holds no packed data set (no hbpack.json); run hbpack pack\n"
        assert (done.code, done.stderr) == (2, message)
    assert not (tmp_path / "dir").exists()


def test_a_folder_with_something_else(packed, exported, tmp_path):
    output = tmp_path / "dir"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    done = export(packed, "trl", output)
    message = f"output folder {str(output)!r} holds something else (notes.txt); name an empty or a new folder"
    assert (done.code, done.stderr) == (2, f"error: {message}\n")
    assert tree(output) == {"notes.txt": b"mine"}
    folder = exported("trl")
    before = tree(folder)
    for options, what in (
        (["nemo"], "to trl"),
        (["trl", "--shard-size", "1MB"], "with --shard-size 300000"),
        (["trl", *SIZE, "--groups", "8k"], "with --groups g0-1024-sp1,g1-8192-sp4"),
        (["trl", *SIZE, "--epoch", "1"], "with --epoch 0"),
    ):
        done = export(packed, options[0], folder, *options[1:])
        message = f"output folder {str(folder)!r} holds an export {what}; remove it, or name an empty or a new folder"
        assert (done.code, done.stderr) == (2, f"error: {message}\n")
    assert tree(folder) == before
    (tmp_path / "file").write_text("")
    done = export(packed, "trl", tmp_path / "file")
    assert done.code == 2
    assert "is a file; name another" in done.stderr


def test_an_export_of_another_set(packed, exported, tmp_path):
    other = shutil.copytree(packed, tmp_path / "other", symlinks=True)
    file = home(other) / "hbpack.json"
    manifest = json.loads(file.read_text())
    write_manifest(file, {**manifest, "fingerprint": "0"})
    done = export(other, "trl", exported("trl"), *SIZE)
    assert done.code == 2
    assert "holds an export of another packed set" in done.stderr


def test_another_run_writes_there(packed, tmp_path):
    output = tmp_path / "dir"
    with lock_folder(output):
        done = export(packed, "trl", output)
    assert (done.code, "another hbpack run writes to it" in done.stderr) == (os.EX_TEMPFAIL, True)


def test_a_damaged_set(packed, tmp_path):
    for damage in ("short", "gone", "garbage", "rank", "plan"):
        other = home(shutil.copytree(packed, tmp_path / damage, symlinks=True))
        shard = sorted(other.glob("shards/*/*.arrow"))[1]
        if damage == "short":
            shard.write_bytes(shard.read_bytes()[:-8])
        elif damage == "gone":
            shard.unlink()
        elif damage == "garbage":
            shard.write_bytes(os.urandom(shard.stat().st_size))
        elif damage == "plan":  # A length in it, which no shard has.
            shard = other / "plan.arrow"
            lengths = pa.ipc.open_file(shard).read_all()["piece_length"].chunk(0).values.buffers()[1].to_pybytes()
            whole = shard.read_bytes()
            assert whole.count(lengths) == 1
            shard.write_bytes(whole.replace(lengths, bytes([lengths[0] ^ 1]) + lengths[1:]))
        else:
            shard = other / "ranks" / "epoch-000" / "rank-00003.arrow"
            shard.unlink()
        done = export(other, "trl", tmp_path / "dir")
        assert done.code == 1, damage
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert str(shard) in done.stderr
        remedy = "run hbpack write, which writes it again" if damage == "rank" else "run hbpack write again"
        assert remedy in done.stderr
        assert not (tmp_path / "dir").exists()


@pytest.mark.parametrize(
    ("words", "is_shared"),
    [
        (("--to", "trl"), True),
        (("--to", "trl", "--groups", "1k"), False),
        (("--to", "llamafactory", "--groups", "8k"), True),
        (("--to", "mds"), True),
        (("--to", "megatron"), False),
    ],
)
def test_rows_that_the_trainer_does_not_share(packed, tmp_path, words, is_shared):
    done = run(main, "export", packed, *words, "--output", tmp_path / "out", "--workers", 1)
    assert done.code == 0, done.stderr
    why = f"{words[1]} runs every row on one GPU, whose memory must hold it"
    remedy = "choose groups of one GPU with --groups, or train with the loader"
    assert [line for line in done.stderr.splitlines() if line.startswith("warning")] == [
        f"warning: rows of 8,192 tokens were planned for 4 GPUs each, and {why}: {remedy}"
    ] * is_shared
