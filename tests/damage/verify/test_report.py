"""What `hbpack verify` reports about sound sets, damaged sets, and folders that hold none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from packer_cli.sizes import counted
from tests.damage.conftest import Packed, hbpack
from tests.damage.verify.report import RANK, damaged, flip, shard_of, verify
from tests.reference import home, tree


def test_a_sound_set(packed: Packed) -> None:
    manifest = json.loads((packed.folder / "hbpack.json").read_text())
    num_shards = sum(len(group["shards"]) for group in manifest["groups"])
    counts = {"shards": num_shards, "rank_manifests": 4, "token_parts": 1}
    counts |= {"packs": sum(group["num_packs"] for group in manifest["groups"])}
    counts |= {"samples": manifest["counts"]["pieces"]}
    sound = {"sound": True, "damaged": [], "repaired": [], "not_checked": []}
    assert verify(packed.folder) == {**sound, "checked": {**counts, "tokens": manifest["counts"]["tokens"]}}
    assert verify(packed.folder, "--fast") == {**sound, "checked": counts}
    done = hbpack("verify", packed.folder)
    assert (done.code, done.stderr) == (0, "")
    parts = f"{counted(num_shards, 'shard')}, 4 rank manifests, 1 token part, "
    assert done.stdout.startswith(f"{packed.folder} is sound: {parts}")


def test_the_command_that_repairs_can_be_pasted(own: Packed, tmp_path: Path) -> None:
    folder = own.folder.rename(tmp_path / "my set")
    flip(home(folder) / RANK)
    repairs = [damage["repair"] for damage in verify(folder)["damaged"]]
    assert repairs == [f"hbpack write '{folder}'"]


def test_what_is_no_set(tmp_path: Path) -> None:
    done = hbpack("verify", tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == f"error: {str(tmp_path)!r} holds no packed data set (no hbpack.json); run hbpack pack\n"


def test_every_damaged_file_is_listed_with_what_repairs_it(own: Packed) -> None:
    whole = tree(own.folder)
    short, copy, gone = shard_of(own.folder, 0), shard_of(own.folder, 1), "ranks/epoch-001/rank-00000.arrow"
    size = (own.home / short).stat().st_size
    shutil.copy(own.home / short, own.home / copy)
    (own.home / short).write_bytes((own.home / short).read_bytes()[:-1])
    (own.home / gone).unlink()
    shutil.copy(own.home / "ranks/epoch-001/rank-00001.arrow", own.home / RANK)
    done = hbpack("verify", own.folder)
    found = damaged(own.folder)
    assert found == {
        short: f"{size - 1} bytes, hbpack.json says {size}",
        gone: "it is missing",
        copy: f"it is a copy of {short}",
        RANK: "it is a copy of ranks/epoch-001/rank-00001.arrow",
    }
    write = f"hbpack write {own.folder}"
    assert done.code == 1
    assert f"{gone}: it is missing; run {write}\n" in done.stdout
    assert done.stderr == f"error: {str(own.folder)!r} is damaged in 4 places; run {write}\n"
    again = hbpack("write", own.folder)  # Shards keep their size.
    assert again.stderr.count("warning: ") == 4
    assert again.stderr.endswith("rewrote 4 damaged files; the others are up to date\n")
    assert tree(own.folder) == whole


def test_a_damaged_manifest_is_reported_with_one_remedy(own: Packed) -> None:
    (own.folder / "hbpack.json").write_bytes(b"")
    done = hbpack("verify", own.folder)
    why = "Expecting value: line 1 column 1 (char 0)"
    path, write = (
        own.folder / "hbpack.json",
        f"run hbpack write {own.folder} (with --shard-size or --index-only, if you gave them before)",
    )
    assert done.code == 1
    assert done.stdout == (
        f"hbpack.json: {str(path)!r} is not JSON ({why}); {write}\n"
        "not checked: everything else: hbpack.json lists it\n"
    )
    assert done.stderr == f"error: {str(own.folder)!r} is damaged in 1 place; {write}\n"


def test_files_that_are_not_the_sets(own: Packed) -> None:
    (own.home / "shards" / "notes.txt").write_text("mine")
    note = "shards/notes.txt: not a file of the set; remove it if you do not need it"
    report = verify(own.folder)
    assert (report["sound"], report["not_checked"]) == (True, [note])
