"""`hbpack verify`, and what the other commands do with a damaged set."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packer_cli.shards.plan_file import read_plan, write_plan
from packer_cli.sizes import counted
from tests.damage.conftest import Packed, hbpack
from tests.loader.packed_set import row_checksum, update_checksums, write_ipc
from tests.reference import tree

RANK = "ranks/epoch-000/rank-00000.arrow"


def verify(folder: Path, *options: str) -> dict[str, Any]:
    done = hbpack("verify", folder, "--json", *options)
    value = json.loads(done.stdout)
    assert done.code == int(not value["sound"])
    return value


def damaged(folder: Path, *options: str) -> dict[str, str]:
    return {damage["file"]: damage["what"] for damage in verify(folder, *options)["damaged"]}


def shard_of(folder: Path, number: int = 0) -> str:
    return sorted(folder.glob("shards/*/*.arrow"))[number].relative_to(folder).as_posix()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_sound_set(packed: Packed) -> None:
    manifest = json.loads((packed.folder / "hbpack.json").read_text())
    num_shards = sum(len(group["shards"]) for group in manifest["groups"])
    counts = {"shards": num_shards, "rank_manifests": 4, "token_parts": 1}
    counts |= {"packs": sum(group["num_packs"] for group in manifest["groups"])}
    counts |= {"samples": manifest["counts"]["pieces"]}
    sound = {"sound": True, "damaged": [], "not_checked": []}
    assert verify(packed.folder) == {**sound, "checked": {**counts, "tokens": manifest["counts"]["tokens"]}}
    assert verify(packed.folder, "--fast") == {**sound, "checked": counts}
    done = hbpack("verify", packed.folder)
    assert (done.code, done.stderr) == (0, "")
    parts = f"{counted(num_shards, 'shard')}, 4 rank manifests, 1 token part, "
    assert done.stdout.startswith(f"{packed.folder} is sound: {parts}")


def test_the_command_that_repairs_can_be_pasted(own: Packed, tmp_path: Path) -> None:
    folder = own.folder.rename(tmp_path / "my set")
    flip(folder / RANK)
    repairs = [damage["repair"] for damage in verify(folder)["damaged"]]
    assert repairs == [f"hbpack write '{folder}'"]


def test_what_is_no_set(tmp_path: Path) -> None:
    done = hbpack("verify", tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == f"error: {str(tmp_path)!r} holds no packed data set (no hbpack.json); run hbpack pack\n"
    done = hbpack("verify", "s3://bucket/out")
    assert done.code == 2
    assert done.stderr == (
        "error: 's3://bucket/out' is a URL, and verify reads folders; copy the set to this machine first\n"
    )


def test_every_damaged_file_is_listed_with_what_repairs_it(own: Packed) -> None:
    whole = tree(own.folder)
    short, copy, gone = shard_of(own.folder, 0), shard_of(own.folder, 1), "ranks/epoch-001/rank-00000.arrow"
    size = (own.folder / short).stat().st_size
    shutil.copy(own.folder / short, own.folder / copy)
    (own.folder / short).write_bytes((own.folder / short).read_bytes()[:-1])
    (own.folder / gone).unlink()
    shutil.copy(own.folder / "ranks/epoch-001/rank-00001.arrow", own.folder / RANK)
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
        f"run hbpack write {own.folder} (with --shard-size, if you gave one before)",
    )
    assert done.code == 1
    assert done.stdout == (
        f"hbpack.json: {str(path)!r} is not JSON ({why}); {write}\n"
        "not checked: everything else: hbpack.json lists it\n"
    )
    assert done.stderr == f"error: {str(own.folder)!r} is damaged in 1 place; {write}\n"


NAMES = ("hbpack.json", "plan.arrow", "rejected.jsonl", "shard", RANK, "tokens/part-00000.arrow", "tokens/tokens.json")


@pytest.mark.parametrize("harm", ["truncate", "remove", "replace", "empty"])
def test_harm_to_whole_files(own: Packed, others: Path, harm: str) -> None:
    whole = tree(own.folder)
    names = [shard_of(own.folder, 1) if name == "shard" else name for name in NAMES]
    for keep in (False, True):  # First each by itself, then all together.
        for name in names:
            path = own.folder / name
            data = path.read_bytes()
            if data == (others / name).read_bytes() or (keep and name == "plan.arrow"):
                continue  # Something must say that the folder is hbpack's.
            if harm == "remove":
                path.unlink()
            elif harm == "replace":
                path.write_bytes((others / name).read_bytes())
            else:
                path.write_bytes(data[: len(data) // 2 if harm == "truncate" else 0])
            if keep:
                continue
            report = verify(own.folder)
            # A token store that is another's, or gone, is no damage of the set: only its tokens cannot be compared.
            is_store = name == "tokens/tokens.json" and harm in ("remove", "replace")
            is_set = name == "hbpack.json" and harm == "replace"
            assert is_store or is_set or name in {damage["file"] for damage in report["damaged"]}, name
            assert report["damaged"] or report["not_checked"]
            path.write_bytes(data)
    assert hbpack(*own.words, "--output", own.folder).code == 0
    assert tree(own.folder) == whole
    assert verify(own.folder)["sound"]


def test_what_is_wrong_in_spite_of_checksums(own: Packed) -> None:
    """As a writer with an error would leave it: the checksums are those of the wrong bytes."""
    name = shard_of(own.folder, 1)
    fingerprint = json.loads((own.folder / "hbpack.json").read_text())["fingerprint"]
    whole = tree(own.folder)
    rows = pa.ipc.open_file((own.folder / name).read_bytes()).read_all()

    def change(column: str, value: Any, *, signs: bool = True) -> dict[str, str]:
        table = rows.to_pylist()
        row = table[2]
        row[column] = value(row[column])
        if signs:
            row["checksum"] = row_checksum(row)
        write_ipc(own.folder, name, pa.Table.from_pylist(table, schema=rows.schema), 16, fingerprint)
        update_checksums(own.folder)
        found = damaged(own.folder)
        assert set(found) == {name}
        return found[name].split(" ", 2)[2]

    def first_plus_1(values: list[int]) -> list[int]:
        return [values[0] + 1, *values[1:]]

    assert change("input_ids", first_plus_1) == "has other input_ids than the token store"
    assert change("loss_mask", lambda mask: [1 - mask[0], *mask[1:]]) == "has other loss_mask than the token store"
    assert change("sample_ids", first_plus_1) == "has other sample_ids than the plan"
    assert change("source_ids", first_plus_1) == "has other source_ids than the token store"
    lengths = change("sample_starts", lambda starts: [*starts, 0])
    assert re.fullmatch(r"of sample_starts in packs \d+ to \d+ are not the plan's", lengths)
    assert change("num_loss_tokens", lambda number: number + 1) == "has another num_loss_tokens than the plan"
    assert change("attention_work", lambda number: number + 1) == "has another attention_work than the plan"
    assert change("cp_sharding", lambda number: 1, signs=False) == "has another cp_sharding than the plan"
    assert change("checksum", lambda number: 1, signs=False) == "has another checksum than the plan"
    other = pa.ipc.open_file((own.folder / RANK.replace("00000.arrow", "00001.arrow")).read_bytes()).read_all()
    write_ipc(own.folder, RANK, other, 10_000, fingerprint)
    update_checksums(own.folder)
    report = verify(own.folder)["damaged"]
    assert {damage["file"] for damage in report} == {name, RANK}
    assert report[0]["what"].endswith("are not the plan's")
    assert {damage["repair"] for damage in report} == {
        f"rm {own.folder / 'hbpack.json'}, then hbpack write {own.folder}"
    }
    (own.folder / "hbpack.json").unlink()
    assert hbpack("write", own.folder, "--shard-size", "65536").code == 0
    assert tree(own.folder) == whole
    write_ipc(own.folder, RANK, other, 10_000, fingerprint)
    update_checksums(own.folder)
    (own.folder / "plan.arrow").unlink()
    found = damaged(own.folder)
    assert set(found) == {"plan.arrow", "ranks/epoch-000"}
    assert " times over all ranks, not once; " in found["ranks/epoch-000"]
    shards = pa.array([99] * len(other), pa.int32())
    other = other.set_column(other.column_names.index("shard"), other.schema.field("shard"), shards)
    write_ipc(own.folder, RANK, other, 10_000, fingerprint)
    update_checksums(own.folder)
    assert damaged(own.folder)[RANK] == "it names packs that the set does not have"


def test_files_of_another_shape_in_spite_of_checksums(own: Packed) -> None:
    name = shard_of(own.folder)
    fingerprint = json.loads((own.folder / "hbpack.json").read_text())["fingerprint"]

    def change(path: str, rows: Callable[[pa.Table], pa.Table], in_batch: int = 16) -> str:
        whole = (own.folder / path).read_bytes()
        write_ipc(own.folder, path, rows(pa.ipc.open_file(whole).read_all()), in_batch, fingerprint)
        update_checksums(own.folder)
        found = damaged(own.folder)
        done = hbpack("export", own.folder, "--to", "parquet", "--output", own.folder.parent / "exported")
        assert (done.code, done.stdout) == (1, "")
        assert str(own.folder / path) in done.stderr
        (own.folder / path).write_bytes(whole)
        update_checksums(own.folder)
        assert set(found) == {path}
        return found[path]

    num_packs = pa.ipc.open_file((own.folder / name).read_bytes()).read_all().num_rows
    assert num_packs > 16
    assert change(name, lambda table: table.drop_columns("cost")) == "it has other columns"
    assert change(name, lambda table: table.slice(0, 16)) == f"it does not hold its {num_packs} packs"
    assert change(name, lambda table: table, in_batch=8) == "its record batch 0 has 8 packs"
    assert change(RANK, lambda table: table.drop_columns("row")) == "it has other columns"
    (own.folder / RANK).write_bytes(b"x" * 1000)
    (own.folder / name).write_bytes(b"neither")
    update_checksums(own.folder)
    assert damaged(own.folder) == {RANK: "Not an Arrow file", name: "File is too small: 7"}


def test_plans_that_are_wrong_in_spite_of_checksums(own: Packed, others: Path) -> None:
    path = own.folder / "plan.arrow"
    whole = path.read_bytes()
    plan, loss_tokens, header = read_plan(path)
    sample = plan.pieces.sample
    twice = replace(plan, pieces=replace(plan.pieces, sample=np.where(sample == sample[3], sample[4], sample)))
    write_plan(path, twice, loss_tokens, header)
    update_checksums(own.folder)
    assert damaged(own.folder) == {
        "plan.arrow": "the pieces do not begin each sample as often as asked; the plan is broken"
    }
    shutil.rmtree(own.folder / "tokens")
    assert set(damaged(own.folder)) == {"plan.arrow"}
    path.write_bytes((others / "plan.arrow").read_bytes())
    update_checksums(own.folder)
    assert damaged(own.folder) == {"plan.arrow": "it is not the plan of the shards beside it"}
    path.write_bytes(whole)
    update_checksums(own.folder)
    assert damaged(own.folder) == {}


def test_without_tokens_or_with_those_of_another_plan(own: Packed, others: Path, tmp_path: Path) -> None:
    shutil.rmtree(own.folder / "tokens")
    what = "whether tokens are those of the token store: "
    gone = f"{what}there is no token store {str(own.folder / 'tokens')!r}"
    report = verify(own.folder)
    assert (report["sound"], report["not_checked"]) == (True, [gone])
    shutil.copytree(others / "tokens", own.folder / "tokens")
    other = f"{what}the token store {str(own.folder / 'tokens')!r} is of other samples than the plan"
    assert verify(own.folder)["not_checked"] == [other]


def test_without_tokens_pack_repairs_what_write_cannot(packed: Packed, tmp_path: Path) -> None:
    words, folder = [*packed.words, "--no-keep-tokens"], tmp_path / "out"
    assert hbpack(*words, "--output", folder).code == 0
    whole = tree(folder)
    write, pack = f"hbpack write {folder}", "the same hbpack pack again"
    for name, repair in ((RANK, write), (shard_of(folder), pack), ("rejected.jsonl", pack), ("hbpack.json", pack)):
        flip(folder / name)
        assert [(damage["file"], damage["repair"]) for damage in verify(folder)["damaged"]] == [(name, repair)]
        assert (hbpack("write", folder).code == 0) == (repair == write)
        if repair == pack:
            assert hbpack(*words, "--output", folder).code == 0
        assert tree(folder) == whole


def test_a_plan_elsewhere_and_other_gpus(own: Packed, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    options = ("--groups", "256", "--gpus", 4, "--overflow", "split", "--output", folder)
    assert hbpack("plan", own.folder, *options).code == hbpack("write", folder).code == 0
    assert hbpack("rebalance", folder, "--gpus", 2, "--from-step", 2).code == 0
    report = verify(folder)
    assert (report["sound"], report["not_checked"]) == (True, [])
    assert {"token_parts", "tokens"} <= report["checked"].keys()
    whole = tree(folder)
    rank = "ranks/rebalanced-001/epoch-000/rank-00001.arrow"
    for name in (rank, "ranks/epoch-000/rank-00003.arrow", "ranks/rebalanced-001/schedules.arrow"):
        flip(folder / name)
        assert set(damaged(folder)) == {name}
        if name.endswith("schedules.arrow"):
            break
        assert hbpack("write", folder).stderr.endswith("the others are up to date, rebalanced to 2 GPUs\n")
        assert tree(folder) == whole
    done = hbpack("write", folder)
    assert "the set becomes as it was planned, for 4 GPUs; run hbpack rebalance again" in done.stderr
    assert hbpack("rebalance", folder, "--gpus", 2, "--from-step", 2).code == 0
    assert tree(folder) == whole


def test_files_that_are_not_the_sets(own: Packed) -> None:
    (own.folder / "shards" / "notes.txt").write_text("mine")
    note = "shards/notes.txt: not a file of the set; remove it if you do not need it"
    report = verify(own.folder)
    assert (report["sound"], report["not_checked"]) == (True, [note])


@pytest.mark.parametrize("name", ["shards", "ranks", "ranks/epoch-001"])
def test_nothing_is_written_through_a_link_to_another_set(own: Packed, others: Path, name: str) -> None:
    before, path = tree(others), own.folder / name
    shutil.rmtree(path)
    path.symlink_to(others / name)
    message = (
        f"error: output folder {str(own.folder)!r}: {str(path)!r} is a link to {str(others / name)!r}; "
        "remove the link, or name another folder\n"
    )
    for words in (["write", own.folder], [*own.words, "--output", own.folder], ["rebalance", own.folder, "--gpus", 4]):
        done = hbpack(*words)
        assert (done.code, done.stdout, done.stderr) == (2, "", message)
    assert tree(others) == before
    path.unlink()
    assert hbpack("write", own.folder, "--shard-size", "65536").code == 0
    assert damaged(own.folder) == {}


def test_a_file_that_is_a_link_to_another_sets_is_replaced(own: Packed, others: Path) -> None:
    before, whole, name = tree(others), tree(own.folder), shard_of(own.folder)
    path = own.folder / name
    path.unlink()
    path.symlink_to(others / name)
    assert damaged(own.folder) == {
        name: f"{str(path)!r} is a link to {str(others / name)!r}, outside the set's folder; copy the file"
    }
    assert hbpack("write", own.folder).code == 0
    assert not path.is_symlink()
    assert tree(own.folder) == whole
    assert tree(others) == before


def test_other_commands_stop_at_damage(own: Packed, tmp_path: Path) -> None:
    folder = own.folder
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shard = shard_of(folder)
    cases = [
        ("plan.arrow", ["stats", folder], "run hbpack plan again"),
        ("plan.arrow", ["rebalance", folder, "--gpus", 4], "run hbpack plan again"),
        ("plan.arrow", ["show", folder, "--sample", 3], "run hbpack write, which rewrites damaged files"),
        (RANK, ["show", folder], "run hbpack write, which rewrites damaged files"),
        (RANK, ["export", folder, "--to", "parquet", "--output", tmp_path / "x"], "run hbpack write again"),
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
        path = folder / name
        if name == RANK:  # What made four ranks see 882 of 1,200 samples.
            shutil.copy(folder / RANK.replace("00000.arrow", "00001.arrow"), path)
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
    path = own.folder / shard_of(own.folder)
    data = bytearray(path.read_bytes())
    ids = pa.ipc.open_file(bytes(data)).get_batch(0).column("input_ids").values.buffers()[1].to_pybytes()
    data[data.find(ids[:64])] ^= 1
    path.write_bytes(data)
    done = hbpack("show", own.folder, "--pack", 0)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: {str(path)!r} is missing or damaged (the checksum of pack 0 is not the one that was written); run "
        "hbpack write, which rewrites damaged files\n"
    )
    assert hbpack("show", own.folder, "--pack", 1).code == 0


def test_write_does_not_read_damaged_tokens(own: Packed) -> None:
    (own.folder / shard_of(own.folder)).unlink()
    part = own.folder / "tokens" / "part-00000.arrow"
    flip(part)
    done = hbpack("write", own.folder, "--shard-size", "65536")
    assert done.code == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"error: token store part {str(part)!r} is damaged (its checksum is "
    )
    assert done.stderr.endswith("; run the same hbpack tokenize or pack again\n")


def test_rejects_without_tokens(own: Packed) -> None:
    shutil.rmtree(own.folder / "tokens")
    flip(own.folder / "rejected.jsonl")
    done = hbpack("write", own.folder, "--shard-size", "65536")
    assert done.code == 1
    assert done.stderr.endswith("and the token store that it is made from is gone; run the same hbpack pack again\n")
