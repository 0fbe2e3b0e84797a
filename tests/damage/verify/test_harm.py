"""Damage to whole files, and what repairs it: missing, truncated and foreign files, links, tokens that are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.damage.conftest import Packed, hbpack, names_damage
from tests.damage.verify.report import RANK, damaged, flip, shard_of, verify
from tests.reference import home, store_parts
from tests.remote.conftest import tree

OF_LAST_PLAN = ("plan.arrow", "rejected.jsonl")
"""The version has its own."""
NAMES = (
    "hbpack.json",
    *OF_LAST_PLAN,
    "VERSION/hbpack.json",
    "VERSION/plan.arrow",
    "VERSION/rejected.jsonl",
    "VERSION/store.json",
    "shard",
    f"VERSION/{RANK}",
    "part",
    "tokens/tokens.json",
)


@pytest.mark.parametrize("harm", ["truncate", "remove", "replace", "swap", "empty"])
def test_harm_to_whole_files(anywhere: Packed, packed: Packed, others: Path, harm: str) -> None:
    """Each is found, by itself; then all together are repaired."""
    folder, whole = anywhere.folder, tree(packed.folder)
    version, foreign_version = packed.version, home(others).name
    shards = [f"{version}/{shard_of(packed.folder, number)}" for number in (1, 0)]
    (part,) = store_parts(packed.folder)
    given = {"shard": shards[0], "part": f"tokens/{part.name}"}
    names = [given.get(name, name.replace("VERSION", version)) for name in NAMES]
    rank = f"{version}/{RANK}"
    partners = {rank: rank.replace("00000.arrow", "00001.arrow"), shards[0]: shards[1]}  # Of the same kind.
    foreign = {name.replace(foreign_version, version): data for name, data in tree(others).items()}
    foreign[given["part"]] = store_parts(others)[0].read_bytes()
    for keep in (False, True):  # First each by itself, then all together.
        for name in names:
            if (name not in partners and harm == "swap") or whole[name] == foreign[name]:
                continue
            if keep and name == "plan.arrow":
                continue  # Something must say that the folder is hbpack's.
            if harm == "remove":
                (folder / name).unlink()
            elif harm == "replace":
                (folder / name).write_bytes(foreign[name])
            elif harm == "swap":
                (folder / name).write_bytes(whole[partners[name]])
                (folder / partners[name]).write_bytes(whole[name])
            else:
                (folder / name).write_bytes(whole[name][: len(whole[name]) // 2 if harm == "truncate" else 0])
            if keep:
                continue
            report = verify(folder)
            # A token store that is gone is no damage of the set: only its tokens cannot be compared. One that has
            # changed still has the version's tokens.
            is_store = name == "tokens/tokens.json" and harm in ("remove", "replace")
            is_set = name == f"{version}/hbpack.json" and harm == "replace"
            wanted = {name, partners[name]} if harm == "swap" else {name}
            found = [damage["file"] for damage in report["damaged"]]
            if name in OF_LAST_PLAN or (is_store and harm == "replace"):
                assert (found, report["not_checked"]) == ([], []), name
            else:
                is_found = all(any(names_damage(anywhere, each, file) for file in found) for each in wanted)
                assert is_store or is_set or is_found, name
                assert report["damaged"] or report["not_checked"]
            for each in {name, partners.get(name, name)}:
                (folder / each).write_bytes(whole[each])
    assert hbpack(*anywhere.words, "--output", folder).code == 0
    assert tree(folder) == whole
    assert verify(folder)["sound"]


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
        flip(home(folder) / name)
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
        flip(home(folder) / name)
        assert set(damaged(folder)) == {name}
        if name.endswith("schedules.arrow"):
            break
        assert hbpack("write", folder).stderr.endswith("the others are up to date, rebalanced to 2 GPUs\n")
        assert tree(folder) == whole
    done = hbpack("write", folder)
    assert "the set becomes as it was planned, for 4 GPUs; run hbpack rebalance again" in done.stderr
    assert hbpack("rebalance", folder, "--gpus", 2, "--from-step", 2).code == 0
    assert tree(folder) == whole


@pytest.mark.parametrize("name", ["shards", "ranks", "ranks/epoch-001"])
def test_nothing_is_written_through_a_link_to_another_set(own: Packed, others: Path, name: str) -> None:
    before, path = tree(others), own.home / name
    shutil.rmtree(path)
    path.symlink_to(home(others) / name)
    message = (
        f"error: output folder {str(own.folder)!r}: {str(path)!r} is a link to {str(home(others) / name)!r}; "
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
    path = own.home / name
    path.unlink()
    path.symlink_to(home(others) / name)
    assert damaged(own.folder) == {
        name: f"{str(path)!r} is a link to {str(home(others) / name)!r}, outside the set's folder; copy the file"
    }
    assert hbpack("write", own.folder).code == 0
    assert not path.is_symlink()
    assert tree(own.folder) == whole
    assert tree(others) == before
