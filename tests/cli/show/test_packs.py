"""`hbpack show` shows the packs of the loader, with the texts and masks of the corpus."""

from __future__ import annotations

import itertools
import json

import pytest

from packer_cli.cli.main import main
from tests.cli.show.conftest import GPUS, PICTURES, parse, views_of
from tests.cli_runner import run
from tests.reference import home, rank_rows, read_rows


def test_every_sample_shows_the_text_and_the_mask_of_its_record(packed, corpus, expected):
    chats = json.loads("[" + ",".join(corpus[0].read_text().splitlines()) + "]")
    seen = set()
    num_packs = sum(group["num_packs"] for group in json.loads((packed / "hbpack.json").read_text())["groups"])
    for pack in range(num_packs):
        [view] = views_of(packed, "--pack", pack)
        plain = run(main, "show", packed, "--pack", pack, "--full").stdout.split("\n")[:-1]
        shown = parse(plain)
        assert len(shown) == len(view["samples"]) == view["pack"]["num_samples"]
        for sample, runs in zip(view["samples"], shown, strict=True):
            text, expected_runs = expected[sample["sample_id"]]
            of_json = [(each["trained"], each["text"]) for each in sample["runs"]]
            assert [(trained, each.translate(PICTURES)) for trained, each in of_json] == runs
            is_chat = sample["sample_id"] < len(chats)
            assert sample["file"] == sample["source"] == str(corpus[not is_chat])
            assert sample["line"] == sample["sample_id"] - (0 if is_chat else len(chats)) + 1
            joined = "".join(each for _, each in of_json)
            if sample["start"] == 0 and joined == text:
                assert of_json == expected_runs
                seen.add(sample["sample_id"])
            else:  # A piece of a text that was cut.
                assert not is_chat
                assert joined in text
            trained = sum(each["num_tokens"] for each in sample["runs"] if each["trained"])
            assert trained == sample["num_loss_tokens"]
    assert seen >= set(range(len(chats)))
    assert len(seen) > len(chats)


def test_each_rank_sees_what_the_loader_gives_it(packed):
    pytest.importorskip("torch")
    from packer_cli.loader import PackedDataset, metadata_of

    for rank, epoch in ((0, 0), (5, 0), (3, 1), (6, 4)):
        dataset = PackedDataset(packed, rank, GPUS, epoch=epoch)
        whole = PackedDataset(packed, rank, GPUS, epoch=epoch, sp_slice=False)
        degrees = set()
        for i in range(len(dataset)):
            known = metadata_of(dataset[i])
            [view] = views_of(packed, "--rank", rank, "--epoch", epoch, "--iteration", i)
            place = view["place"]
            names = (
                "epoch",
                "step",
                "iteration",
                "sp_size",
                "sp_rank",
                "dp_rank",
                "dp_size",
                "global_num_loss_tokens",
            )
            assert {name: place[name] for name in names} == {name: known[name] for name in names}
            if known["pack_id"] < 0:
                assert view["pack"] is None
                continue
            assert view["pack"]["pack_id"] == known["pack_id"]
            assert [each["sample_id"] for each in view["samples"]] == known["sample_ids"].tolist()
            assert [each["num_loss_tokens"] for each in view["samples"]] == known["sample_num_loss_tokens"].tolist()
            row = [number for each in view["samples"] for item in each["runs"] for number in item["input_ids"]]
            assert whole[i]["input_ids"][0, : len(row)].tolist() == row
            begin, end = view["pack"]["rank_tokens"]
            part = dataset[i]["input_ids"][0].tolist()
            assert part[: len(row[begin:end])] == row[begin:end]
            assert len(part) == end - begin
            degrees.add(place["sp_size"])
        assert degrees == {1, 4}


def test_a_step_shows_its_first_iteration_and_lists_the_others(packed):
    rows = rank_rows(packed, 2)
    step = next(row["step"] for row, after in itertools.pairwise(rows) if row["step"] == after["step"])
    iterations = [row["iteration"] for row in rows if row["step"] == step]
    [view] = views_of(packed, "--step", step, "--rank", 2)
    assert view["step_iterations"] == iterations
    assert view["place"]["iteration"] == iterations[0]
    lines = run(main, "show", packed, "--step", step, "--rank", 2).stdout.splitlines()
    assert f"  step {step} has {len(iterations)} iterations:" in lines
    assert [line.split()[-1] for line in lines[:-1] if "--iteration" in line] == [str(i) for i in iterations[1:]]
    assert views_of(packed) == views_of(packed, "--step", 0, "--rank", 0, "--epoch", 0)


WHERE = "if the loader pads"


def test_the_header_says_what_the_pack_is(packed):
    manifest = json.loads((packed / "hbpack.json").read_text())
    rows = rank_rows(packed, 6)
    i = next(i for i, row in enumerate(rows) if row["sp_size"] == 4)
    row, group = rows[i], manifest["groups"][rows[i]["group"]]
    pack = read_rows(home(packed) / group["shards"][row["shard"]]["path"])[row["row"]]
    part = -(-pack["num_tokens"] // 4)
    begin, end = 2 * part, min(3 * part, pack["num_tokens"])
    borders = pack["cu_seqlens"]
    held = [k for k in range(len(borders) - 1) if borders[k] < end and borders[k + 1] > begin]
    samples = f"sample {held[0]}" if len(held) == 1 else f"samples {held[0]} to {held[-1]}"
    whole = f"the whole step has {row['global_num_loss_tokens']:,}"
    share = pack["num_loss_tokens"] / pack["num_tokens"]
    padding = (2048 - pack["num_tokens"], row["row_length"] - pack["num_tokens"])
    lines = run(main, "show", packed, "--iteration", i, "--rank", 6).stdout.splitlines()
    assert lines[:9] == [
        f"epoch 0, step {row['step']}, iteration {i}, rank 6: pack {pack['pack_id']} of {group['name']}",
        "",
        f"  samples         {len(borders) - 1}",
        f"  tokens          {pack['num_tokens']:,} of 2,048 (capacity)",
        (f"  loss tokens     {pack['num_loss_tokens']:,} ({share:.1%} of the tokens); {whole}"),
        f"  padding         {padding[0]} to the capacity, {padding[1]} to the iteration's row length, {WHERE}",
        f"  attention work  {pack['attention_work']:,}",
        (
            "  SP degree       4: ranks 4 to 7 share this row; with Ulysses, rank 6 has tokens "
            f"[{begin}, {end}), {samples}"
        ),
        f"  DP rank         {row['dp_rank']} of {row['dp_size']}",
    ]


def test_a_pack_and_a_sample_are_found_wherever_they_are(packed):
    packs = [pack for path in sorted(home(packed).glob("shards/*/*.arrow")) for pack in read_rows(path)]
    cut = next(
        i for pack in packs for i, start in zip(pack["sample_ids"], pack["sample_starts"], strict=True) if start
    )
    holders = [pack["pack_id"] for pack in packs if cut in pack["sample_ids"]]
    assert len(holders) > 1
    views = views_of(packed, "--sample", cut)
    assert sorted(view["pack"]["pack_id"] for view in views) == holders
    starts = [view["samples"][0]["start"] for view in views]
    assert starts == sorted(starts)
    assert {each["sample_id"] for view in views for each in view["samples"]} == {cut}
    for view in views:
        place = view["place"]
        row = rank_rows(packed, place["rank"])[place["iteration"]]
        assert {name: row[name] for name in ("group", "shard", "row", "step")} == {
            name: place[name] for name in ("group", "shard", "row", "step")
        }
        assert row["sp_rank"] == 0
    text = run(main, "show", packed, "--sample", cut).stdout
    assert text.count("-- sample ") == sum(len(view["samples"]) for view in views)
    assert "a piece of its sample, from token " in text


def test_a_rebalanced_set(copy):
    pytest.importorskip("torch")
    from packer_cli.loader import PackedDataset

    used = {view["pack"]["pack_id"] for view in views_of(copy, "--iteration", 0)}
    assert run(main, "rebalance", copy, "--gpus", 4, "--from-step", 2).code == 0
    dataset = PackedDataset(copy, 3, 4)
    [view] = views_of(copy, "--rank", 3)
    assert view["place"]["step"] == dataset[0]["step"] == 2
    assert view["pack"]["pack_id"] == dataset[0]["pack_id"]
    last = dataset.num_steps - 1
    done = run(main, "show", copy, "--step", 1)
    assert (done.code, done.stderr) == (
        2,
        f"error: --step must be from 2 to {last}, got 1: those are the steps of epoch 0\n",
    )
    [view] = views_of(copy, "--pack", used.pop())
    assert view["place"] is None
    done = run(main, "show", copy, "--pack", view["pack"]["pack_id"])
    assert (
        done.stdout.splitlines()[0]
        == f"pack {view['pack']['pack_id']} of {view['pack']['group']}: not used in epoch 0"
    )
    assert "  used            before the set was dealt to other GPUs, in an earlier part of the epoch" in done.stdout
    [view] = views_of(copy, "--pack", view["pack"]["pack_id"], "--epoch", 1)
    assert view["place"]["epoch"] == 1
    assert run(main, "rebalance", copy, "--gpus", 8, "--from-step", 0, "--epoch", 1).code == 0
    done = run(main, "show", copy, "--epoch", 0)
    assert (done.code, done.stderr) == (
        2,
        "error: --epoch 0 was over when the set was dealt to 8 GPUs; choose 1 or a later one\n",
    )
