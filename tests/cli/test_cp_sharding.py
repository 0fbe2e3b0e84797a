"""`--cp-sharding` from the command line to the shards and the loader's parts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer_cli.format.sharding import PLANNED
from packer_cli.shards.plan_file import read_plan, read_plan_header
from tests.naive import sharding as naive
from tests.reference import read_packs

CP = 4
GROUPS = ("--groups", "512,4k", "--parallel", f"cp={CP}", "--gpus", 8)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Records of token ids: many short ones and a few long ones."""
    generator = np.random.default_rng(0)
    lengths = [*generator.integers(2, 300, 90), *generator.integers(600, 4096, 12)]
    path = tmp_path_factory.mktemp("corpus") / "tokens.jsonl"
    rows = [{"input_ids": generator.integers(3, 100, n).tolist()} for n in generator.permutation(lengths).tolist()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def make(pack, corpus, tmp_path):
    """Pack the corpus with more options; the output folder."""

    def call(*options: object, name: str = "out"):
        done = pack(corpus, *GROUPS, *options, output=tmp_path / name)
        assert done.code == 0, done.stderr
        return tmp_path / name

    return call


def lengths_of(plan) -> list[list[int]]:
    return [
        plan.pieces.length[plan.packs.pieces[begin:end]].tolist()
        for begin, end in zip(plan.packs.offsets[:-1], plan.packs.offsets[1:], strict=True)
    ]


def fastest(lengths: list[int], rho: float = 1.0) -> int:
    seconds = [naive.seconds(lengths, CP, name, lambda q, kv: rho if q < 256 else 1.0) for name in PLANNED]
    return int(seconds[1] < seconds[0])


def test_each_pack_gets_the_faster_sharding(make, hbpack) -> None:
    out = make()
    plan, _ = read_plan(out / "plan.arrow")
    wanted = [fastest(lengths) for lengths in lengths_of(plan)]
    assert set(wanted) == {0, 1}
    assert plan.packs.cp_sharding.tolist() == wanted
    assert [pack["cp_sharding"] for pack in read_packs(out)] == wanted
    assert hbpack("verify", out).code == 0

    values = json.loads(hbpack("stats", out, "--json").stdout)
    imbalances = [
        naive.imbalance(lengths, CP, PLANNED[code]) for lengths, code in zip(lengths_of(plan), wanted, strict=True)
    ]
    assert values["overall"]["cp_imbalance"] == pytest.approx(np.mean(imbalances))
    assert values["overall"]["cp_imbalance_max"] == pytest.approx(max(imbalances))
    assert values["overall"]["cp_document_share"] == pytest.approx(np.mean(wanted))
    assert values["baseline"]["cp_document_share"] == 0
    assert f"{np.mean(wanted):.0%} of the packs are sharded per document" in hbpack("stats", out).stdout

    for code, text in enumerate(("per sequence (zigzag)", "per document")):
        shown = hbpack("show", out, "--pack", wanted.index(code))
        assert f"CP sharding     {text}" in shown.stdout, shown.stderr
        (shown,) = json.loads(hbpack("show", out, "--pack", wanted.index(code), "--json").stdout)
        assert shown["pack"]["cp_sharding"] == PLANNED[code]


def test_one_sharding_for_all(make) -> None:
    plans = [read_plan(make("--cp-sharding", name, name=name) / "plan.arrow")[0] for name in ("sequence", "document")]
    assert [set(plan.packs.cp_sharding.tolist()) for plan in plans] == [{0}, {1}]


def test_rho_and_measured_times_turn_the_choice(make, tmp_path, repo) -> None:
    rates = {"slow": 1e-3, "fast": 1.0}
    found = {}
    for name, of_short in rates.items():
        profile = json.loads((repo / "tests/groups/data/hbp-table-4.json").read_text())
        sizes = [(q, kv) for kv in (256, 4096) for q in (1, 128, 256, 1024) if q <= kv]
        profile["pieces"] = [
            {"queries": q, "keys": kv, "seconds": max(q, 128) * kv / (of_short if q < 256 else 1.0)} for q, kv in sizes
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps(profile))
        out = make("--profile", tmp_path / f"{name}.json", name=name)
        plan, _ = read_plan(out / "plan.arrow")
        found[name] = plan.packs.cp_sharding.sum()
        pieces = read_plan_header(out / "plan.arrow").config.attention_pieces
        assert pieces is not None
        assert [(q, kv) for q, kv, _ in pieces] == sizes
    plan, _ = read_plan(make("--cp-sharding", "auto:rho=0.3", name="rho") / "plan.arrow")
    assert plan.packs.cp_sharding.tolist() == [fastest(lengths, 0.3) for lengths in lengths_of(plan)]
    assert found["slow"] < found["fast"]


def test_without_context_parallelism_no_pack_has_one(pack, corpus, tmp_path, hbpack) -> None:
    assert pack(corpus, output=tmp_path / "out").code == 0
    assert {each["cp_sharding"] for each in read_packs(tmp_path / "out")} == {0}
    assert "cp_imbalance" not in json.loads(hbpack("stats", tmp_path / "out", "--json").stdout)["overall"]


def test_an_unknown_sharding_is_refused(pack, corpus) -> None:
    done = pack(corpus, *GROUPS, "--cp-sharding", "zigzag")
    rule = "unknown sharding 'zigzag'; known: sequence, document, static, auto, and auto:rho=R such as auto:rho=0.7"
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: --cp-sharding: {rule}\n")


def test_the_loader_takes_the_planned_parts(make) -> None:
    pytest.importorskip("torch")
    from packer_cli.loader import PackedDataset

    out = make()
    packs = {pack["pack_id"]: pack for pack in read_packs(out)}
    found = 0
    for batches in zip(*(PackedDataset(out, rank, 8) for rank in range(8)), strict=True):
        for first in (0, CP):
            pack = packs.get(batches[first]["pack_id"])
            if pack is None:
                continue
            parts = [batch["input_ids"][0] for batch in batches[first : first + CP]]
            row = [*pack["input_ids"], *[0] * (CP * len(parts[0]) - len(pack["input_ids"]))]
            lengths = np.diff([*pack["cu_seqlens"], len(row)]).tolist()
            name = PLANNED[pack["cp_sharding"]]
            assert {batch["sp_sharding"] for batch in batches[first : first + CP]} == {name}
            for part, places in zip(parts, naive.shard(lengths, CP, name), strict=True):
                real = [i for i, place in enumerate(places) if place < len(pack["input_ids"])]
                assert part[real].tolist() == [row[places[i]] for i in real]
            found += 1
    assert found == len(packs)
