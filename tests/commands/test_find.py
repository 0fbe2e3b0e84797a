"""`find`: where a record went, compared with the shards and the rank manifests, read one by one."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.commands.planned import read_planned
from packer_cli.errors import ConfigError, HbpackError, InputError
from packer_cli.format.manifest import SetFolder
from packer_cli.format.ranks import read_rank_rows
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.own_store import open_own_store
from tests.cli_runner import run
from tests.naive.content_hash import content_hash
from tests.reference import home, read_packs

TRAINED = ("epoch", "step", "iteration", "rank", "ranks")


def naive_places(folder):
    """Each line of the set with all of its places, from every shard and every rank manifest."""
    folder = home(folder)
    manifest, trained = read_manifest(folder), {}
    for epoch in range(manifest.first_epoch, manifest.first_epoch + len(manifest.epochs)):
        for rank in range(manifest.num_gpus):
            rows = read_rank_rows(SetFolder(folder), manifest, rank, epoch)
            for number in range(len(rows.columns["pack"])):
                row = rows.row(number)
                if row.place == 0:
                    use = (epoch, row.step, row.iteration, rank, manifest.groups[row.group].layout.num_gpus)
                    trained.setdefault(int(rows.columns["pack"][number]), []).append(use)
    store = open_own_store(folder, read_planned(folder).header)
    paths = [
        (shard.path, row) for group in manifest.groups for shard in group.shards for row in range(shard.num_packs)
    ]
    batches = [batch["input_ids"] for batch, _ in store.batches_of(np.ones(len(store), dtype=np.bool_))]
    ids = [row for batch in batches for row in map(batch.row, range(len(batch.offsets) - 1))]
    found = {}
    for pack, where in zip(read_packs(folder), paths, strict=True):
        borders = pack["cu_seqlens"].tolist()
        pieces = zip(pack["sample_ids"].tolist(), pack["sample_starts"].tolist(), borders, borders[1:], strict=False)
        for sample, start, begin, end in pieces:
            ((file, line),) = store.locate([sample])
            digest = f"hash:{content_hash(ids[sample].tolist()):016x}"
            for use in trained.get(pack["pack_id"], [(None,) * len(TRAINED)]):
                found.setdefault((file, line), []).append(
                    (sample, digest, start, end - begin, pack["pack_id"], *where, *use)
                )
    return {place: sorted(uses, key=str) for place, uses in found.items()}


def assert_finds_all(folder, lines):
    wanted = naive_places(folder)
    found = {}
    for place in hbpack.find(folder, [f"{file}:{line}" for file, line in lines]).places:
        file, line, *values = vars(place).values()
        uses = found.setdefault((file, line), [])
        uses += [tuple(values)] if place.pack is not None else []
    assert wanted.keys() <= {*lines}
    assert {place: sorted(uses, key=str) for place, uses in found.items()} == {
        place: wanted.get(place, []) for place in lines
    }


@pytest.mark.parametrize(
    "options",
    [
        ("--validation", "10%"),
        ("--overflow", "split", "--groups", "64:1,128:2", "--gpus", 4, "--epochs", 2, "--shard-size", "64KiB"),
        ("--lockstep", 1, "--global-tokens", "4k"),
    ],
)
def test_each_record_is_where_shards_and_ranks_have_it(chats, pack, tmp_path, options):
    weight = "" if "--validation" in options else "@1.5"
    pack(tmp_path / "out", f"{chats}{weight}", *options)
    lines = [(str(chats), line) for line in range(1, 312)]
    assert_finds_all(tmp_path / "out", lines)
    if "--validation" in options:
        assert_finds_all(tmp_path / "out/validation", lines)


def test_it_follows_a_set_to_other_gpus(chats, pack, tmp_path):
    """What is left of the first epoch, and the second one."""
    out = tmp_path / "out"
    pack(out, chats, "--epochs", 2)
    done = run(main, "rebalance", out, "--gpus", 4, "--from-step", 2)
    assert done.code == 0, done.stderr
    assert_finds_all(out, [(str(chats), line) for line in range(1, 312)])


def test_no_shard_is_read_and_files_go_by_their_ends(chats, out):
    every = hbpack.find(out, [f"{chats}:{line}" for line in range(1, 60)]).places
    line = next(place.line for place in every if place.pack is not None)  # The first ones may be set aside.
    whole = hbpack.find(out, f"{chats}:{line}")
    for folder in ("shards", "ranks"):
        shutil.rmtree(home(out) / folder)
    for name in ("chats.jsonl", f"{chats.parent.name}/chats.jsonl"):
        assert hbpack.find(out, [f"{name}:{line}"]) == whole
    printed = run(main, "find", out, f"chats.jsonl:{line}", "chats.jsonl:51", "--json")
    assert json.loads(printed.stdout)["places"][: len(whole.places)] == whole.values()["places"]
    assert json.loads(printed.stdout)["places"][-1] == {"file": str(chats), "line": 51}  # A broken line.
    text = run(main, "find", out, f"chats.jsonl:{line}").stdout
    assert repr(whole).split() == text.split()[: len(repr(whole).split())]
    assert f"hbpack show {out} --sample {whole.places[0].sample}" in text


def test_a_plan_has_no_shards_yet(chats, pack, tmp_path):
    pack(tmp_path / "out", chats)
    assert run(main, "plan", tmp_path / "out", "--packing", "ffd").code == 0
    (place,) = hbpack.find(tmp_path / "out", f"{chats}:1").places
    assert (place.sample, place.shard, place.row) == (0, None, None)
    assert place.step is not None


def test_what_is_asked_wrongly(chats, out, pack, tmp_path):
    for wrong in ("chats.jsonl", "chats.jsonl:", "chats.jsonl:x", ":3"):
        with pytest.raises(ConfigError, match="is not a record; give FILE:LINE, such as"):
            hbpack.find(out, wrong)
    with pytest.raises(InputError, match=r"'hats.jsonl' is not a file of the set, which has .*chats.jsonl"):
        hbpack.find(out, "hats.jsonl:3")
    (tmp_path / "a").mkdir()
    shutil.copy(chats, tmp_path / "a/chats.jsonl")
    shutil.copy(chats, tmp_path / "chats.jsonl")
    pack(tmp_path / "two", tmp_path / "a/chats.jsonl", tmp_path / "chats.jsonl")
    with pytest.raises(InputError, match=r"'chats.jsonl' is several files of the set, which has"):
        hbpack.find(tmp_path / "two", "chats.jsonl:3")
    assert len(hbpack.find(tmp_path / "two", f"{tmp_path}/chats.jsonl:3").places) == 1
    pack(tmp_path / "none", chats, "--no-keep-tokens")
    with pytest.raises(InputError, match=r"keeps no token store, .*; pack it again, without --no-keep-tokens"):
        hbpack.find(tmp_path / "none", "chats.jsonl:3")
    with pytest.raises(HbpackError, match="holds no plan"):
        hbpack.find(tmp_path / "a", "chats.jsonl:3")


def test_an_item_is_found_whole_and_divided(pack, tmp_path):
    """Pairs, and conversations whose turns are divided as their paths are long, by their number in the token store."""
    chat = [{"role": role, "content": f"{role} says {'much ' * 5}"} for role in ("user", "assistant")]
    pair = {"prompt": "Which one? " * 20, "chosen": "This one.", "rejected": "None."}
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (pair, {"messages": chat * 9}, pair)), "utf-8")
    out = tmp_path / "out"
    pack(out, path, "--turns", "branch", "--groups", "128:1,384:2")
    tables = [pa.ipc.open_file(shard).read_all().to_pylist() for shard in home(out).glob("shards/*/*.arrow")]
    rows = [row for table in tables for row in table]
    held = {(item, row["pack_id"]) for row in rows for item in row["item_ids"]}
    places = hbpack.find(out, [f"{path}:{line}" for line in (1, 2, 3)]).places
    assert {(place.sample, place.pack) for place in places} == held
    assert [place.line for place in places if place.sample == 1].count(2) > 1
    assert sum(place.tokens for place in places) == sum(row["num_tokens"] for row in rows)
