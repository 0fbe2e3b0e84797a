"""Verification, repair, show, append and rebalance of sets with trees."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packer_cli.format.trees import PAIR
from tests.damage.verify.report import damaged, flip, verify
from tests.items.conftest import hbpack, write_pairs, write_records, write_texts
from tests.loader.packed_set import row_checksum, update_checksums, write_ipc
from tests.reference import current_tree, home, tree


@pytest.fixture
def own(packed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(packed, tmp_path / "own", symlinks=True)


def test_a_sound_set_is_sound(packed: Path) -> None:
    report = verify(packed)
    assert report["sound"]
    checked = report["checked"]
    assert checked["packs"] > 2
    assert checked["samples"] > checked["items"] > 50


@pytest.mark.parametrize(
    ("column", "change", "found", "found_fast"),
    [
        ("branch_roles", lambda roles: [roles[0] + 2, *roles[1:]], "has other branch_roles than the token store",
         ": a pair is not one chosen and one rejected branch"),
        ("segment_parents", lambda parents: [0, *parents[1:]], "has other segment_parents than the token store",
         ": a segment stands before its parent"),
        ("rewards", lambda rewards: [1.0, *rewards[1:]], "has other rewards than the token store", None),
        ("num_path_tokens", lambda number: number + 1, "has another num_path_tokens than the plan",
         " has another num_path_tokens than the plan"),
        ("item_ids", lambda ids: [ids[0] + 1, *ids[1:]], "has other item_ids than the plan",
         " has other item_ids than the plan"),
        ("sample_ids", lambda ids: [ids[0] + 1, *ids[1:]], "has other sample_ids than the plan", None),
        ("loss_stops", lambda stops: [stops[0] + 9999, *stops[1:]], "has other loss_stops than the token store",
         ": the loss spans of its branch 0 are wrong"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_spite_of_checksums(
    own: Path, column: str, change: Any, found: str, found_fast: str | None
) -> None:
    folder = home(own)
    path = min(folder.glob("shards/*/*.arrow"))
    name = path.relative_to(folder).as_posix()
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    rows = table.to_pylist()
    row = next(row for row in rows if row["item_kinds"][0] == PAIR)
    row[column] = change(row[column])
    row["checksum"] = row_checksum(row, table.schema)
    fingerprint = json.loads((folder / "hbpack.json").read_text())["fingerprint"]
    write_ipc(folder, name, pa.Table.from_pylist(rows, schema=table.schema), 16, fingerprint)
    update_checksums(folder)
    assert damaged(own) == {name: f"pack {row['pack_id']} {found}"}
    shutil.rmtree(own / "tokens")
    why = {} if found_fast is None else {name: f"pack {row['pack_id']}{found_fast}"}
    assert damaged(own) == why


def test_no_column_may_differ_from_the_plan_and_the_store(own: Path) -> None:
    folder = home(own)
    path = min(folder.glob("shards/*/*.arrow"))
    name = path.relative_to(folder).as_posix()
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    fingerprint = json.loads((folder / "hbpack.json").read_text())["fingerprint"]
    columns = [column for column in table.column_names if column != "checksum"]
    for column in columns:
        rows = table.to_pylist()
        row = next(row for row in rows if row["item_kinds"][0] == PAIR)
        row[column] = _other(row[column])
        row["checksum"] = row_checksum(row, table.schema)
        write_ipc(folder, name, pa.Table.from_pylist(rows, schema=table.schema), 16, fingerprint)
        update_checksums(folder)
        assert damaged(own).keys() == {name}, column
    assert {"segment_starts", "item_branches", "margin", "loss_weights"} <= {*columns}


def _other(value: Any) -> Any:
    if isinstance(value, list):
        return [_other(value[0]), *value[1:]]
    return 1.0 if value != value else value + 1


def test_damaged_files_are_repaired(own: Path, packed: Path) -> None:
    for path in [*home(own).glob("shards/*/*.arrow"), home(own) / "ranks/epoch-000/iterations.arrow"]:
        flip(path)
    assert len(damaged(own)) == 3
    assert hbpack("verify", own, "--repair").code == 0
    assert tree(own) == tree(packed)


def test_appended_records_are_as_if_packed_together(
    own: Path, corpus: Path, words: list[object], tmp_path: Path
) -> None:
    more = write_records(tmp_path / "more.jsonl", 1, 20)
    done = hbpack("append", own, more, "--workers", 1)
    assert done.code == 0, done.stderr
    assert hbpack("pack", corpus, more, *words, "--output", tmp_path / "both").code == 0
    assert current_tree(own) == current_tree(tmp_path / "both")


@pytest.mark.parametrize("given", [(), ("--packing", "isf"), ("--packing", "ffd")], ids=str)
def test_pairs_are_appended_to_a_flat_set(given: tuple[str, ...], words: list[object], tmp_path: Path) -> None:
    """What was not given has its default for samples that share prefixes; what was given stays."""
    texts = write_texts(tmp_path / "texts.jsonl")
    pairs = write_pairs(tmp_path / "pairs.jsonl", 1, 20)
    options = [*words[:2], *words[4:], *given]
    for inputs, name in (([texts], "own"), ([texts, pairs], "both")):
        done = hbpack("pack", *inputs, *options, "--output", tmp_path / name)
        assert done.code == 0, done.stderr
    done = hbpack("append", tmp_path / "own", pairs, "--workers", 1)
    assert done.code == 0, done.stderr
    assert current_tree(tmp_path / "own") == current_tree(tmp_path / "both")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--index-only",), "error: --index-only "),
        (("--align", "8"), "error: --align "),
        (("--mask", "causal"), "error: --mask causal "),
    ],
    ids=["index-only", "align", "mask"],
)
def test_a_set_that_cannot_hold_pairs_stays_as_it_was(
    given: tuple[str, ...], why: str, words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its last part takes more texts, and if an append of these pairs was killed before."""
    texts, more = write_texts(tmp_path / "texts.jsonl"), write_texts(tmp_path / "more.jsonl", seed=1)
    pairs = write_pairs(tmp_path / "pairs.jsonl", 1, 20)
    options, own = [*words[:2], *words[4:], *given], tmp_path / "own"
    assert hbpack("pack", texts, *options, "--output", own).code == 0
    before = tree(own)
    with monkeypatch.context() as patch:
        patch.setattr("packer_cli.commands.append.pack_corpus", _killed)
        assert hbpack("append", own, pairs, "--workers", 1).code == 130
    _refused(own, pairs, why=why)
    assert tree(own) == before
    with monkeypatch.context() as patch:
        patch.setattr("packer_cli.tokens.input_slices.GROUP_BYTES", sum(path.stat().st_size for path in (texts, more)))
        _refused(own, more, pairs, why=why)
    assert tree(own) == before
    assert hbpack("pack", texts, pairs, *options, "--output", own).code == 2
    assert tree(own) == before
    assert verify(own)["sound"]
    assert hbpack("append", own, more, "--workers", 1).code == 0
    assert hbpack("pack", texts, more, *options, "--output", tmp_path / "both").code == 0
    assert current_tree(own) == current_tree(tmp_path / "both")


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def _refused(own: Path, *inputs: Path, why: str) -> None:
    done = hbpack("append", own, *inputs, "--workers", 1)
    assert done.code == 2
    assert why in done.stderr


def test_a_set_is_dealt_to_other_gpus(own: Path) -> None:
    done = hbpack("rebalance", own, "--gpus", 8)
    assert done.code == 0, done.stderr
    assert verify(own)["sound"]
    path = home(own) / "ranks/rebalanced-001/epoch-000/iterations.arrow"
    iterations = pa.ipc.open_file(path.read_bytes()).read_all()
    assert {"global_num_items", "most_items"} <= {*iterations.column_names}


def test_show_draws_the_branches_of_every_item(packed: Path, corpus: Path) -> None:
    records = [json.loads(line) for line in corpus.read_text().splitlines()]
    [view] = json.loads(hbpack("show", packed, "--sample", 0, "--json").stdout)
    [item] = view["items"]
    assert (item["item_id"], item["kind"], item["line"], view["samples"]) == (0, "pair", 1, [])
    assert [branch["role"] for branch in item["branches"]] == ["chosen", "rejected"]
    assert json.loads((packed / "hbpack.json").read_text())["counts"]["truncated"] > 0
    for number, branch in enumerate(item["branches"]):
        shown = "".join(
            run["text"] for segment in item["segments"] if number in segment["branches"] for run in segment["runs"]
        )
        assert records[0]["prompt"] in shown
        assert branch["num_tokens"] < 2048
        assert records[0][branch["role"]][:1000] in shown
    seen = 0
    for number in range(verify(packed)["checked"]["packs"]):
        done = hbpack("show", packed, "--pack", number)
        assert done.code == 0, done.stderr
        lines = done.stdout.splitlines()
        # Names of files are not wrapped.
        assert max(len(line) for line in lines[2:-1] if str(corpus) not in line) <= 100
        seen += sum(line.startswith("-- item ") for line in lines)
    assert seen == verify(packed)["checked"]["items"]


@pytest.mark.usefixtures("rows_of_this_process")
def test_commands_that_plan_and_report(packed: Path, tmp_path: Path) -> None:
    assert hbpack("stats", packed).code == 0
    done = hbpack("report", packed, "--output", tmp_path / "page.html", "--strategies", "naive")
    assert done.code == 0, done.stderr
    done = hbpack("compare", packed, "--groups", "2k:1", "--gpus", 2, "--strategies", "naive", "--json")
    assert done.code == 0, done.stderr
