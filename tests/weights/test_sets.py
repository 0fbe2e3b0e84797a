"""Weights on their way from a record to the loader, and in the commands that read a set."""

import importlib
import json
import shutil
import warnings
from contextlib import nullcontext
from importlib.util import find_spec

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from packer_cli.cli.main import main
from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.errors import ConfigError, InputError
from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.losses import batch_losses, sample_mean, stable_loss, token_losses, token_mean
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer
from tests.cli_runner import run
from tests.loader import torchtitan_twin
from tests.reference import current_tree, home, read_mds
from tests.weights.conftest import records


def expected(repo, record):
    """(ids, weight of each token's loss), as transformers renders and marks the record."""
    hf = LoadedTokenizer(str(repo / "examples" / "sample" / "tokenizer")).hf
    weight = record.get("weight", 1)
    if "text" in record:
        ids = [*hf(record["text"])["input_ids"], hf.eos_token_id]
        return ids, [0.0] + [weight] * (len(ids) - 1)
    ids = hf.apply_chat_template(record["messages"], return_dict=False)
    weights = [0.0] * len(ids)
    for place, message in enumerate(record["messages"]):
        if message["role"] == "assistant":
            before = hf.apply_chat_template(record["messages"][:place], add_generation_prompt=True, return_dict=False)
            after = hf.apply_chat_template(record["messages"][: place + 1], return_dict=False)
            assert ids[: len(after)] == after
            stop = len(after) - 1 if after[-1] == hf("\n")["input_ids"][0] else len(after)
            of_message = weight * message.get("weight", 1)
            weights[len(before) : stop] = [of_message] * (stop - len(before))
    return ids, weights


def batches(path, **options):
    """Each batch of each rank of an epoch."""
    for rank in range(4):
        yield from PackedDataset(path, rank, 4, **options)


def test_each_token_has_the_weight_of_its_record_and_message(repo, weighted):
    found = {}
    for batch in batches(weighted, sp_slice=False):
        assert batch["loss_weights"].dtype == torch.float32
        assert ((batch["labels"] >= 0) == (batch["loss_weights"] > 0)).all()
        borders = batch["cu_seq_lens_q"].tolist()
        for number, sample in enumerate(batch["sample_ids"].tolist()):
            part = slice(borders[number], borders[number + 1])
            found[sample] = (batch["input_ids"][0, part].tolist(), batch["loss_weights"][0, part].tolist())
    of_records = [expected(repo, record) for record in records(repo)]
    assert found == dict(enumerate(each for each in of_records if any(each[1])))
    values = {weight for _, weights in found.values() for weight in weights}
    assert {0, 0.5, 1, 2, 1.25, 0.625} <= values


def test_index_only_and_slices_give_the_same(weighted, indexed):
    for ours, theirs in zip(batches(weighted), batches(indexed), strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("input_ids", "labels", "loss_weights", "shift_loss_weights", "loss_weight", "global_loss_weight"):
            assert torch.equal(torch.as_tensor(ours.get(key, 0)), torch.as_tensor(theirs.get(key, 0)))
    for sharding in ("contiguous", "zigzag", "document"):
        for rank in range(4):
            whole = PackedDataset(weighted, rank, 4, sp_slice=False)
            for sliced, row in zip(PackedDataset(weighted, rank, 4, sp_sharding=sharding), whole, strict=True):
                if row["sp_size"] == 1:
                    assert "shift_loss_weights" not in sliced
                    continue
                assert ((sliced["shift_labels"] >= 0) == (sliced["shift_loss_weights"] > 0)).all()
                assert ((sliced["labels"] >= 0) == (sliced["loss_weights"] > 0)).all()
                shifted = F.pad(row["loss_weights"], (0, 1))[..., 1:]
                assert set(sliced["shift_loss_weights"].flatten().tolist()) <= set(shifted.flatten().tolist())


def test_the_mean_of_a_step_is_weighted(weighted):
    """Summed over ranks and iterations, `stable_loss` is the weighted mean over the step's tokens."""
    sums, weights, losses = {}, {}, {}
    for batch in batches(weighted):
        labels = batch.get("shift_labels", F.pad(batch["labels"], (0, 1), value=-100)[..., 1:])
        of_token = batch.get("shift_loss_weights", F.pad(batch["loss_weights"], (0, 1))[..., 1:])
        logits = torch.sin(torch.arange(labels.numel() * 7)).reshape(1, -1, 7)
        labels = torch.where(labels >= 0, labels % 7, labels)
        step = batch["step"]
        loss = token_losses(logits, labels, of_token)
        targets = {"labels": batch["labels"], "loss_weights": batch["loss_weights"]}
        if "shift_labels" in batch:
            targets |= {"shift_labels": labels, "shift_loss_weights": of_token}
        elif (batch["labels"] >= 0).any():
            targets["labels"] = torch.where(batch["labels"] >= 0, batch["labels"] % 7, -100)
        assert torch.equal(batch_losses(logits, targets), loss)
        plain = token_losses(logits, labels)
        sums[step] = sums.get(step, 0) + (plain * of_token.flatten()).sum()
        weights[step] = weights.get(step, 0) + of_token.sum().item()
        losses[step] = losses.get(step, 0) + stable_loss(loss.sum(), batch, world_size=1)
        assert weights[step] <= batch["global_loss_weight"] + 1e-6
        with pytest.raises(ValueError) as error:
            sample_mean(loss, batch, world_size=1)
        assert str(error.value) == (
            "the set has loss weights, and a mean over samples would not keep them: use stable_loss, or pass "
            "loss_weights=False to PackedDataset"
        )
        if batch["loss_weight"] and batch["sp_size"] == 1:
            mean = loss.sum() / batch["loss_weight"] / batch["global_num_packs"]
            assert token_mean(loss.sum(), batch, world_size=1).item() == pytest.approx(mean.item())
    assert len(sums) > 2
    for step, total in sums.items():
        assert losses[step].item() == pytest.approx((total / weights[step]).item(), rel=1e-5)


def test_formats(weighted, corpus, pack, tmp_path):
    for name in ("flash-attn", "megatron", "megatron-thd"):
        for batch, usual in zip(batches(weighted, format=name), batches(weighted, sp_slice=False), strict=True):
            if name == "flash-attn":
                assert ((batch["labels"] >= 0) == (batch["loss_weights"] > 0)).all()
            elif usual["sp_size"] == 1:
                shifted = F.pad(usual["loss_weights"], (0, 1))[..., 1:].flatten()
                assert torch.equal(batch["loss_mask"].flatten(), shifted)
    for name in ("torchtitan", "torchtune", "deepspeed"):
        with pytest.raises(ConfigError) as error:
            PackedDataset(weighted, 0, 4, format=name)
        assert str(error.value) == (
            f"'{weighted}' has loss weights, for which trainers of format {name!r} have no place: choose format "
            "'transformers', 'flash-attn', 'megatron' or 'megatron-thd', or pass loss_weights=False, with which all "
            "loss tokens count 1"
        )
        first = PackedDataset(weighted, 0, 4, format=name, loss_weights=False)[0]
        assert "global_loss_weight" not in metadata_of(first)
    assert "loss_weights" not in PackedDataset(weighted, 0, 4, loss_weights=False)[0]
    pack(corpus, tmp_path / "free", "--lockstep", 1)
    for rank in range(4):
        for micro_batches in PackedDataset(tmp_path / "free", rank, 4, lockstep=False):
            assert all("loss_weights" in each for each in micro_batches)  # Those of fillers are zeros.


def test_torchtitans_loader(corpus, pack, tmp_path):
    pack(corpus, tmp_path / "out", "--groups", "1k", "--gpus", 2)
    with torchtitan_twin.installed() if find_spec("torchtitan") is None else nullcontext():
        titan = importlib.import_module("packer_cli.loader.adapters.torchtitan")

    def build(**changes):
        config = titan.PackedDataLoader.Config(path=str(tmp_path / "out"), **changes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the plan has steps of several iterations")
            return config.build(
                dp_world_size=2, dp_rank=0, tokenizer=None, max_context_length=1024, num_tokens_per_batch=1024
            )

    with pytest.raises(ConfigError, match="has loss weights, for which trainers of format 'torchtitan' have no place"):
        build()
    inputs, labels = next(iter(build(loss_weights=False)))
    assert inputs["input"].shape == labels.shape == (1024,)


def test_rebalance_keeps_the_weights_of_steps(weighted, tmp_path):
    moved = shutil.copytree(weighted, tmp_path / "moved", symlinks=True)
    done = run(main, "rebalance", moved, "--gpus", 2)
    assert done.code == 0, done.stderr
    totals = {}
    for rank in range(2):
        for batch in PackedDataset(moved, rank, 2, sp_slice=False):
            place = totals.setdefault(batch["step"], [batch["global_loss_weight"], 0.0])
            assert place[0] == batch["global_loss_weight"]
            place[1] += batch["loss_weight"] / batch["sp_size"]
    for total, summed in totals.values():
        assert summed == pytest.approx(total)
    assert run(main, "verify", moved).code == 0


def test_commands(repo, weighted, indexed, corpus, pack, tmp_path):
    for folder in (weighted, indexed):
        done = run(main, "verify", folder)
        assert done.code == 0, done.stdout + done.stderr
        shown = run(main, "show", folder, "--epoch", 0, "--rank", 0).stdout
        assert "loss weight" in shown
    packs = [run(main, "show", weighted, "--pack", number).stdout for number in range(8)]
    assert any("\nx 0.5   | " in text for text in packs)
    (value,) = json.loads(run(main, "show", weighted, "--pack", 0, "--json").stdout)
    of_runs = sum(run["weight"] * run["num_tokens"] for sample in value["samples"] for run in sample["runs"])
    assert of_runs == pytest.approx(value["pack"]["loss_weight"])
    assert run(main, "show", indexed, "--pack", 0, "--json").stdout == run(
        main, "show", weighted, "--pack", 0, "--json"
    ).stdout.replace(str(weighted), str(indexed))
    counts = json.loads(run(main, "stats", weighted, "--json").stdout)["counts"]
    of_records = [weight for record in records(repo) for weight in expected(repo, record)[1] if weight]
    assert (counts["loss_tokens"], counts["loss_weight"]) == (len(of_records), sum(of_records))
    lines = [line.split() for line in run(main, "stats", weighted).stdout.splitlines()]
    assert ["loss", "weight", f"{sum(of_records):,.10g}"] in lines
    again = pack(corpus, tmp_path / "again", "--workers", 2)
    assert again.code == 0
    for path in sorted(path for path in weighted.rglob("*.arrow") if path.is_file()):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(weighted)).read_bytes()


def test_a_damaged_weight_is_found(weighted, tmp_path):
    own = shutil.copytree(weighted, tmp_path / "own", symlinks=True)
    shard = next((home(own) / "shards").rglob("shard-*.arrow"))
    data = shard.read_bytes()
    at = data.index(np.float32(0.5).tobytes() * 2)
    shard.write_bytes(data[:at] + np.float32(0.75).tobytes() + data[at + 4 :])
    assert run(main, "verify", own).code == 1
    with pytest.raises(Exception, match="checksum of row"):
        list(batches(own))


def test_exports(weighted, tmp_path):
    done = run(main, "export", weighted, "--to", "parquet", "--output", tmp_path / "parquet")
    assert done.code == 0, done.stderr
    rows = pq.read_table(tmp_path / "parquet").to_pylist()
    assert all([weight > 0 for weight in row["loss_weights"]] == [bit > 0 for bit in row["loss_mask"]] for row in rows)
    assert {weight for row in rows for weight in row["loss_weights"]} == {0, 0.5, 1, 2, 1.25, 0.625}
    wanted = {row["pack_id"]: row for row in rows}
    done = run(main, "export", weighted, "--to", "mds", "--output", tmp_path / "mds")
    assert done.code == 0, done.stderr
    shards = json.loads((tmp_path / "mds" / "index.json").read_text())["shards"]
    mds = [row for shard in shards for row in read_mds(tmp_path / "mds" / shard["raw_data"]["basename"], shard)]
    assert len(mds) == len(wanted)
    for row in mds:
        for name in ("input_ids", "loss_mask", "loss_weights", "cu_seqlens", "sample_ids"):
            assert row[name].tolist() == wanted[row["pack_id"]][name]
        assert row["loss_weights"].dtype == np.float32
    done = run(main, "export", weighted, "--to", "megatron", "--order", "packs", "--output", tmp_path / "megatron")
    assert done.code == 0, done.stderr
    mask = np.fromfile(tmp_path / "megatron" / "loss_mask.bin", "<f4")
    assert mask.tolist() == [weight for row in rows_by_id(wanted) for weight in row["loss_weights"]]
    assert (tmp_path / "megatron" / "loss_mask.idx").read_bytes()[17] == 7  # Megatron's code of float32.
    with pytest.raises(InputError) as caught:
        discover_and_cut(tmp_path / "megatron")
    assert str(caught.value) == (
        f"{tmp_path}/megatron/loss_mask.idx: cannot be read: it has numbers of dtype 7, such as loss weights; a mask "
        "has integers, 0 and 1; correct it, or leave it out"
    )


def rows_by_id(rows):
    return [rows[pack] for pack in sorted(rows)]


def discover_and_cut(folder):
    return slice_corpus(discover([str(folder)])[1])


@pytest.mark.parametrize("name", ["nemo", "trl", "xtuner", "llamafactory", "automodel"])
def test_exports_without_a_place_for_weights(weighted, tmp_path, name):
    words = ("export", weighted, "--to", name, "--groups", "256", "--output", tmp_path / "out")
    done = run(main, *words)
    assert done.code == 2
    assert done.stderr == (
        f"error: '{weighted}' has loss weights, for which {name} has no place: export to megatron, parquet or mds, or "
        "add --no-loss-weights, with which all loss tokens count 1\n"
    )
    assert not (tmp_path / "out").exists()
    assert run(main, *words, "--no-loss-weights").code == 0


def test_an_export_with_weights_is_not_one_without(weighted, tmp_path):
    words = ("export", weighted, "--to", "parquet", "--output", tmp_path / "out")
    assert run(main, *words, "--no-loss-weights").code == 0
    assert "loss_weights" not in pq.read_table(tmp_path / "out").column_names
    done = run(main, *words)
    assert done.code == 2
    assert done.stderr == (
        f"error: output folder '{tmp_path}/out' holds an export without loss weights; remove it, or name an empty or "
        "a new folder\n"
    )


def test_append_gives_the_same_as_packing_all(repo, pack, tmp_path):
    """The first input has no weights, so that its parts and all shards get another column."""
    plain, heavy = tmp_path / "plain.jsonl", tmp_path / "heavy.jsonl"
    lines = [json.dumps(record) + "\n" for record in records(repo)]
    plain.write_text("".join(line for line in lines if "weight" not in line), encoding="utf-8")
    heavy.write_text("".join(line for line in lines if "weight" in line), encoding="utf-8")
    pack([plain, heavy], tmp_path / "whole")
    pack([plain], tmp_path / "first")
    done = run(main, "append", tmp_path / "first", heavy)
    assert done.code == 0, done.stderr
    assert "loss_weights" in PackedDataset(tmp_path / "first", 0, 4)[0]
    assert current_tree(tmp_path / "first") == current_tree(tmp_path / "whole")


def test_sets_without_weights_have_no_column(corpus, pack, repo, tmp_path):
    """Weights of 0 and 1 are loss masks."""
    path = tmp_path / "plain.jsonl"
    lines = records(repo)[:8]
    for record in lines:
        record["weight"] = 1.0
        for message in record["messages"]:
            message["weight"] = int(message["role"] == "assistant" and message.get("weight", 1) != 2)
    path.write_text("".join(json.dumps(record) + "\n" for record in lines), encoding="utf-8")
    pack(path, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "tokens" / "tokens.json").read_bytes())["parts"][0]["loss_weight"] is None
    batch = PackedDataset(tmp_path / "out", 0, 4)[0]
    assert not {"loss_weights", "loss_weight", "global_loss_weight"} & batch.keys()
    assert run(main, "verify", tmp_path / "out").code == 0
