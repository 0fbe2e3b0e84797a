"""What the other commands do with a damaged set."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa

from packer_cli.remote.path import RemotePath
from packer_cli.verify.verifier import _remove
from tests.damage.conftest import Packed, hbpack
from tests.damage.verify.report import RANK, flip, shard_of
from tests.reference import store_parts


def test_verify_repairs_what_write_does(own: Packed) -> None:
    folder = own.folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    flip(own.home / RANK)
    flip(own.home / shard_of(folder))
    done = hbpack("verify", folder, "--repair", "--json", "--workers", 1)
    report = json.loads(done.stdout)
    assert (done.code, report["sound"], report["damaged"]) == (0, True, [])
    assert {damage["file"] for damage in report["repaired"]} == {RANK, shard_of(folder)}
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    part = next(folder.glob("tokens/part-*.arrow"))
    flip(part)
    flip(own.home / RANK)
    done = hbpack("verify", folder, "--repair", "--workers", 1)
    assert done.code == 1
    assert done.stderr.endswith(
        f"error: {str(folder)!r} is damaged in 2 places; run hbpack write {folder} / the same hbpack pack again\n"
    )
    assert "repaired" not in done.stdout


def test_other_commands_stop_at_damage(own: Packed, tmp_path: Path) -> None:
    folder = own.folder
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shard = shard_of(folder)
    cases = [
        ("plan.arrow", ["stats", folder], "run hbpack plan again"),
        ("plan.arrow", ["rebalance", folder, "--gpus", 4], "run hbpack write again"),
        ("plan.arrow", ["show", folder, "--sample", 3], "run hbpack write, which writes it again"),
        (RANK, ["show", folder], "run hbpack write, which writes it again"),
        (
            RANK,
            ["export", folder, "--to", "parquet", "--output", tmp_path / "x"],
            "run hbpack write, which writes it again",
        ),
        (shard, ["export", folder, "--to", "parquet", "--output", tmp_path / "x"], "run hbpack write again"),
        *(
            ("hbpack.json", [*words, *last], "run hbpack write, which rewrites it")
            for words, last in (
                (["stats", folder], []),
                (["show", folder], []),
                (["rebalance", folder], ["--gpus", 4]),
                (["export", folder, "--to", "parquet"], ["--output", tmp_path / "x"]),
            )
        ),
    ]
    for name, words, remedy in cases:
        path = (folder if name == "plan.arrow" and words[0] == "stats" else own.home) / name
        if name == RANK:  # What made four ranks see 882 of 1,200 samples.
            shutil.copy(own.home / RANK.replace("00000.arrow", "00001.arrow"), path)
        elif name == "plan.arrow":
            ids = pa.ipc.open_file(whole[path]).get_batch(0).column("piece_sample").values.buffers()[1].to_pybytes()
            at = whole[path].find(ids[:80])
            path.write_bytes(whole[path][: at + 8] + b"\x07" + whole[path][at + 9 :])
        else:
            flip(path)
        done = hbpack(*words)
        assert (done.code, done.stdout) == (1, ""), words
        assert done.stderr.count("\n") == 1
        assert str(path) in done.stderr
        assert done.stderr.rstrip().endswith(remedy), done.stderr
        assert not (tmp_path / "x").exists()
        path.write_bytes(whole[path])


def test_show_checks_the_pack_that_it_shows(own: Packed) -> None:
    path = own.home / shard_of(own.folder)
    data = bytearray(path.read_bytes())
    ids = pa.ipc.open_file(bytes(data)).get_batch(0).column("input_ids").values.buffers()[1].to_pybytes()
    data[data.find(ids[:64])] ^= 1
    path.write_bytes(data)
    done = hbpack("show", own.folder, "--pack", 0)
    assert (done.code, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"error: {str(path)!r} is damaged \(the checksum of row 0 is \w{{16}}, not \w{{16}} as stored\); "
        "run hbpack write, which writes it again\n",
        done.stderr,
    )
    assert hbpack("show", own.folder, "--pack", 1).code == 0


def test_write_does_not_read_damaged_tokens(own: Packed) -> None:
    (own.home / shard_of(own.folder)).unlink()
    (part,) = store_parts(own.folder)
    flip(part)
    done = hbpack("write", own.folder, "--shard-size", "65536")
    assert done.code == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"error: token store part {str(part)!r} is damaged (its checksum is "
    )
    assert done.stderr.endswith("; run the same hbpack tokenize or pack again\n")


def test_rejects_without_tokens(own: Packed) -> None:
    shutil.rmtree(own.folder / "tokens")
    flip(own.home / "rejected.jsonl")
    done = hbpack("write", own.folder, "--shard-size", "65536")
    assert done.code == 1
    assert done.stderr.endswith("and the token store that it is made from is gone; run the same hbpack pack again\n")


def test_a_repair_that_was_killed_leaves_nothing_for_good(own: Packed) -> None:
    """The first one died while it wrote, the second one when it had put the file in its place."""
    left = (own.home / RANK).with_name(f".{Path(RANK).name}.0123abcd.tmp")
    left.write_bytes(b"half of it")
    assert hbpack("verify", own.folder, "--workers", 1).code == 0
    assert left.exists()
    assert hbpack("verify", own.folder, "--repair", "--workers", 1).code == 0
    assert not left.exists()


def test_text_of_a_plan_that_is_not_text(own: Packed) -> None:
    plan = own.folder / "plan.arrow"
    data = bytearray(plan.read_bytes())
    data[data.rindex(b'"store"') + 2] ^= 0x80
    plan.write_bytes(data)
    done = hbpack("stats", own.folder)
    assert (done.code, done.stderr) == (
        1,
        f"error: {str(plan)!r} is damaged (its description is not text); run hbpack plan again\n",
    )


def test_any_byte_of_a_plan(own: Packed) -> None:
    plan = own.folder / "plan.arrow"
    data = plan.read_bytes()
    for place in range(0, len(data), 97):
        bad = bytearray(data)
        bad[place] ^= 0x80
        plan.write_bytes(bad)
        done = hbpack("stats", own.folder)
        assert done.code == 0 or (done.stderr.startswith("error: ") and "codec" not in done.stderr)


def test_how_files_are_removed() -> None:
    for name, command in {
        "/data/out/x": "rm /data/out/x",
        "s3://bucket/x": "aws s3 rm s3://bucket/x",
        "gs://bucket/x": "gcloud storage rm gs://bucket/x",
        "memory://x": "a tool that removes memory://x",
    }.items():
        assert _remove(RemotePath(name) if ":" in name else Path(name)) == command
