"""`--validation`: samples set aside by their tokens, in a set of their own."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.commands import plan, rebalance, write
from packer_cli.config.fields import read_validation
from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from tests.cli_runner import run
from tests.commands.conftest import GROUPS, NUM_CHATS
from tests.naive.content_hash import content_hash
from tests.reference import current_tree, home, read_packs, tree


def texts(folder: Path) -> Counter[tuple[int, ...]]:
    """The samples of a set, joined of their pieces, and how often each is there."""
    pieces: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}
    for row in read_packs(folder):
        times: Counter[tuple[int, int]] = Counter()
        for k, (sample, start) in enumerate(zip(row["sample_ids"], row["sample_starts"], strict=True)):
            ids = row["input_ids"][row["cu_seqlens"][k] : row["cu_seqlens"][k + 1]]
            key = (int(sample), int(start))
            times[key] += 1
            pieces.setdefault(key, []).append((int(start), tuple(ids.tolist())))
    of_sample: dict[int, list[list[tuple[int, tuple[int, ...]]]]] = {}
    for (sample, _), found in sorted(pieces.items()):
        of_sample.setdefault(sample, []).append(found)
    joined: Counter[tuple[int, ...]] = Counter()
    for parts in of_sample.values():
        joined[tuple(token for part in parts for token in part[0][1])] += len(parts[0])
    return joined


def counts(folder: Path) -> dict[str, int]:
    return json.loads((home(folder) / "hbpack.json").read_text())["counts"]


def test_each_sample_is_on_one_side(packed):
    training, validation = texts(packed), texts(packed / "validation")
    assert not training.keys() & validation.keys()
    assert sum(training.values()) + sum(validation.values()) == NUM_CHATS + 10
    bound = 2**64 // 10
    assert {content_hash(ids) < bound for ids in validation} == {True}
    assert {content_hash(ids) < bound for ids in training} == {False}
    found, aside = counts(packed), counts(packed / "validation")
    assert found["records"] == NUM_CHATS + 11 == found["rejected"] + found["samples"] + aside["samples"]
    assert aside["records"] == aside["samples"] == sum(validation.values())
    assert aside["tokens"] == sum(len(ids) * times for ids, times in validation.items())
    assert len((packed / "rejected.jsonl").read_text().splitlines()) == 1
    assert (packed / "validation/rejected.jsonl").read_text() == ""
    assert not (home(packed) / "validation/tokens").exists()
    assert sorted(path.name for path in (packed / "validation").iterdir()) == ["plan.arrow", "rejected.jsonl"]


def test_a_row_is_on_one_gpu_and_as_long_as_in_training(packed):
    groups = json.loads((home(packed) / "validation/hbpack.json").read_text())["groups"]
    assert [(group["capacity"], group["sp_size"]) for group in groups] == [(1024, 1)]


def test_the_loader_reads_it_on_each_rank(packed):
    ranks = [list(PackedDataset(str(packed / "validation"), rank, 8)) for rank in range(8)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [int(sample) for batches in ranks for batch in batches for sample in batch.metadata["sample_ids"]]
    there = [int(sample) for row in read_packs(packed / "validation") for sample in row["sample_ids"]]
    assert sorted(seen) == sorted(there)
    assert len(seen) >= counts(packed / "validation")["samples"] > 0


def test_the_split_is_the_same_in_any_order_and_with_weights(packed, chats, pack, tmp_path):
    lines = chats.read_text(encoding="utf-8").splitlines(keepends=True)
    random.Random(0).shuffle(lines)
    (tmp_path / "a.jsonl").write_text("".join(lines[:120]), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(lines[120:]), encoding="utf-8")
    pack(tmp_path / "o", tmp_path / "b.jsonl@2.5", tmp_path / "a.jsonl@0.5", "--validation", "10%", "--workers", 2)
    assert texts(tmp_path / "o/validation") == texts(packed / "validation")
    assert texts(tmp_path / "o").keys() <= texts(packed).keys()
    assert run(main, "verify", tmp_path / "o").code == 0
    assert counts(tmp_path / "o")["left_out_by_weight"] > 0


def test_a_number_is_of_the_lowest_hashes_and_stays_when_data_is_added(chats, pack, sample, tmp_path):
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    more = tmp_path / "more.jsonl"
    more.write_text("".join(lines[NUM_CHATS : NUM_CHATS + 200]), encoding="utf-8")
    out, both = tmp_path / "out", tmp_path / "both"
    pack(out, chats, "--validation", 25)
    before = texts(out / "validation")
    by_hash = sorted(content_hash(ids) for ids, times in (texts(out) + before).items() for _ in range(times))
    assert sorted(map(content_hash, before.elements())) == by_hash[: sum(before.values())]
    assert 25 <= sum(before.values()) <= 26
    bound = json.loads((out / "hbpack.json").read_text())["config"]["plan"]["validation"]

    assert run(main, "append", out, more, "--workers", 1).code == 0
    after = texts(out / "validation")
    assert before.keys() < after.keys()
    assert not after.keys() & texts(out).keys()
    pack(both, chats, more, "--validation", bound)
    assert current_tree(both) == current_tree(out)
    pack(both, chats, more, "--validation", 25)
    assert texts(both / "validation").keys() <= after.keys()


def test_equal_samples_count_together(chats, pack, tmp_path):
    lines = chats.read_text(encoding="utf-8").splitlines(keepends=True)[:12]
    (tmp_path / "in.jsonl").write_text("".join(lines * 3), encoding="utf-8")
    done = pack(tmp_path / "out", tmp_path / "in.jsonl", "--validation", 1)
    assert "validation: 3 samples instead of 1: equal ones stay together" in done.stderr
    assert set(texts(tmp_path / "out/validation").values()) == {3}


def test_another_split_takes_the_same_tokens_and_none_takes_it_away(out, chats, pack):
    tokens = {path: path.stat().st_mtime_ns for path in (out / "tokens").glob("part-*")}
    before = tree(out)
    assert "the shards are up to date" in pack(out, chats, "--validation", "10.0%").stderr
    assert tree(out) == before
    pack(out, chats, "--validation", "50%")
    assert counts(out / "validation")["samples"] > 100
    assert run(main, "verify", out).code == 0
    earlier = home(out)
    pack(out, chats)
    assert not (out / "validation").exists()
    assert not (home(out) / "validation").exists()
    assert run(main, "verify", earlier).code == 0
    assert counts(earlier / "validation")["samples"] > 100
    assert counts(out)["records"] == counts(out)["rejected"] + counts(out)["samples"]
    assert {path: path.stat().st_mtime_ns for path in (out / "tokens").glob("part-*")} == tokens


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_killed_run_goes_on(packed, chats, pack, tmp_path, monkeypatch, call):
    """It is killed before the plan or the shards of validation or of training."""
    calls = 0

    def killing(work):
        def wrapped(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == call:
                raise KeyboardInterrupt
            return work(*arguments, **options)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(plan, "write_plan", killing(plan.write_plan))
        patch.setattr(write.SetWriter, "complete", killing(write.SetWriter.complete))
        pack(tmp_path / "out", chats, "--validation", "10%", code=130)
    assert not (tmp_path / "out/hbpack.json").exists()
    pack(tmp_path / "out", chats, "--validation", "10%")
    assert tree(tmp_path / "out") == tree(packed)


def test_it_follows_to_another_number_of_gpus(out):
    done = run(main, "rebalance", out, "--gpus", 4)
    assert done.code == 0
    assert "validation: dealt to 4 GPUs" in done.stderr
    assert json.loads((home(out) / "validation/hbpack.json").read_text())["num_gpus"] == 4
    assert run(main, "verify", out).code == 0
    # As if the run had been killed between the two.
    rebalance.deal(home(out) / "validation", 8, rebalance.Stop(name="the start"))
    done = run(main, "verify", out)
    assert "validation: it is for 8 GPUs, and training for 4; run hbpack write" in done.stdout
    assert run(main, "write", out).code == 0
    assert run(main, "verify", out).code == 0


def test_damage_is_found_and_repaired(out):
    shard = next((home(out) / "validation/shards").glob("*/*.arrow"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    done = run(main, "verify", out)
    assert done.code == 1
    assert f"validation/{shard.relative_to(home(out) / 'validation')}: " in done.stdout
    assert run(main, "verify", out, "--repair").code == 0


def test_a_plan_that_is_gone_is_missed(out, packed, chats, pack):
    shutil.rmtree(out / "validation")
    gone = f"{str(out / 'validation')!r} holds no plan.arrow, and samples were set aside in it"
    again = "run the same hbpack pack again, or hbpack plan and hbpack write"
    assert run(main, "verify", out).code == 0  # The version has its own.
    assert f"{gone}; {again}" in run(main, "status", out).stdout
    done = run(main, "status", out, "--stage", "plan", "--json")
    assert (done.code, json.loads(done.stdout)["stages"][0]["state"]) == (1, "missing")
    done = run(main, "write", out)
    assert (done.code, done.stderr) == (1, f"error: {gone}; {again}\n")
    pack(out, chats, "--validation", "10%")
    assert tree(out) == tree(packed)


def test_a_set_that_is_gone_is_written_again(out, packed):
    shutil.rmtree(home(out) / "validation")
    found = f"validation/hbpack.json: it is missing; run hbpack write {out}\n"
    assert found in run(main, "verify", out).stdout
    assert run(main, "verify", out, "--repair", "--workers", 1).code == 0
    assert tree(out) == tree(packed)


def test_stages_on_their_own_give_the_same(packed, chats, sample, tmp_path):
    out = tmp_path / "out"
    tokenize = ("tokenize", chats, "--tokenizer", sample / "tokenizer", "--workers", 1, "--output", out)
    assert run(main, *tokenize).code == 0
    assert run(main, "plan", out, *GROUPS, "--validation", "10%").code == 0
    done = run(main, "status", out, "--json")
    states = {stage["stage"]: stage["state"] for stage in json.loads(done.stdout)["stages"]}
    assert states == {"tokens": "complete", "plan": "complete", "shards": "missing"}
    for task in range(2):
        assert run(main, "write", out, "--shard", f"{task}/2", "--workers", 1).code == 0
    assert tree(out) == tree(packed)
    assert run(main, "status", out).code == 0


def test_what_is_printed(packed, chats, sample):
    done = run(main, "plan", packed, *GROUPS, "--validation", "10%", "--json")
    assert json.loads(done.stdout)["validation"] == counts(packed / "validation")
    done = run(main, "write", packed)
    assert f'evaluate with PackedDataset("{packed}/validation", rank, 8)' in done.stderr + done.stdout
    found = hbpack.PackedSet(packed).validation()
    assert found is not None
    assert found.manifest().counts.samples == hbpack.PackedSet(packed).manifest().counts.set_aside
    assert found.validation() is None
    assert run(main, "stats", packed).code == run(main, "stats", packed / "validation").code == 0
    assert run(main, "show", packed / "validation").code == 0


def test_figures_are_of_the_samples_that_train(chats, pack, sample, tmp_path):
    """Those of two inputs, as a chart tells them apart."""
    out = tmp_path / "out"
    pack(out, chats, sample / "journals.jsonl", "--validation", "10%", "--overflow", "drop")
    words = ("--output", tmp_path / "page.html", "--strategies", "naive", "--workers", 1, "--json")
    found = json.loads(run(main, "report", out, *words).stdout)
    assert found["stats"]["counts"] == {**found["stats"]["counts"], **counts(out)}
    assert found["comparison"]["counts"]["samples"] == counts(out)["samples"]
    done = run(main, "compare", out, *GROUPS, "--overflow", "drop", "--algorithms", "bfs", "--workers", 1, "--json")
    compared = json.loads(done.stdout)
    assert compared["counts"]["samples"] == counts(out)["samples"]
    assert (compared["config"]["validation"], compared["config"]["is_validation"]) == (None, False)
    assert run(main, "report", out / "validation", *words).code == 0


def test_an_export_leaves_it_out(packed, tmp_path):
    done = run(main, "export", packed, "--to", "trl", "--output", tmp_path / "trl", "--workers", 1)
    assert f"{packed / 'validation'} is a set of its own; export it with another hbpack export" in done.stderr


def test_long_samples_follow_overflow_on_their_side(chats, pack, tmp_path):
    options = ("--groups", "64:1,128:1", "--overflow", "drop", "--validation", "30%")
    pack(tmp_path / "out", chats, *options)
    training, validation = (
        (home(tmp_path / "out") / name / "rejected.jsonl").read_text().splitlines() for name in (".", "validation")
    )
    found = counts(tmp_path / "out")
    assert len(training) == found["rejected"] + found["dropped"]
    assert len(validation) == counts(tmp_path / "out/validation")["dropped"] > 0
    assert run(main, "verify", tmp_path / "out").code == 0


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        (
            "-1",
            2,
            "'-1' is neither a share nor a number of samples; write a share of the samples, such as 1%, a number",
        ),
        ("0x1", 2, "or the bound that hbpack.json notes, such as 0x028f5c28f5c28f5c"),
        ("100%", 2, "100% is not between 0% and 100%"),
        ("0.01", 2, "'0.01' is neither a share nor a number"),
        ("0.0001%", 1, "--validation 0.0001% sets aside none of 310 samples; give a larger share, or a number"),
        ("310", 1, "--validation 310 leaves nothing to train on: there are 310 samples"),
    ],
)
def test_what_is_wrong_is_one_line(chats, pack, tmp_path, value, code, message):
    done = pack(tmp_path / "out", chats, "--validation", value, code=code)
    assert message in done.stderr.splitlines()[-1]


def test_a_set_of_the_user_is_kept(chats, pack, tmp_path):
    pack(tmp_path / "out", chats)
    pack(tmp_path / "out/validation", chats, "--groups", "1k")
    before = tree(tmp_path / "out")
    done = pack(tmp_path / "out", chats, "--validation", "10%", code=2)
    assert "holds a set that was packed on its own, and --validation would hide it; move that folder" in done.stderr
    pack(tmp_path / "out", chats)
    assert tree(tmp_path / "out") == before


def test_lengths_have_no_validation():
    with pytest.raises(ConfigError, match="validation: samples are set aside by their tokens"):
        hbpack.plan([3, 4], groups="1k", gpus=1, validation="1%")


def test_equal_choices_are_equal_text():
    assert read_validation(" 1.50 % ") == "1.5%"
    assert read_validation(7) == read_validation("007") == "7"
    assert read_validation("2k") == read_validation("2K") == read_validation(2000) == "2000"
