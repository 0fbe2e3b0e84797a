"""The main job from text to shards, on the sample corpus and on real data, against an independent reading."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from packer_cli.cli.main import main
from packer_cli.plan import warming
from tests.cli_runner import run, run_process
from tests.reference import assert_holds_samples, expected_samples, home, rank_rows, read_packs, read_rows, tree


def hbpack(*arguments):
    done = run(main, *arguments)
    assert done.code == 0, done.stderr
    return done


@pytest.fixture(scope="session")
def sample(repo):
    return repo / "examples" / "sample"


@pytest.fixture(scope="session")
def sample_inputs(sample):
    return [sample / "chats.jsonl", sample / "journals.jsonl"]


@pytest.fixture(scope="session")
def options(sample):
    return ["--tokenizer", sample / "tokenizer", "--groups", "1k:1,8k:4", "--gpus", "8", "--seed", "1"]


@pytest.fixture(scope="session")
def packed(tmp_path_factory, sample_inputs, options):
    """By a process of its own, as a user runs it."""
    words = ["pack", *sample_inputs, *options, "--workers", "1", "--output"]
    return run_process(words, tmp_path_factory.mktemp("packed") / "out")


def times(folder: Path) -> dict[Path, int]:
    """When each file was written, but the one that notes the times of inputs."""
    return {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != "inputs.json"
    }


def test_every_sample_is_packed_once_as_transformers_encodes_it(packed, sample, sample_inputs):
    assert_holds_samples(packed, expected_samples(sample_inputs, sample / "tokenizer"))


def test_the_bytes_do_not_depend_on_workers(packed, tmp_path, sample_inputs, options):
    hbpack("pack", *sample_inputs, *options, "--output", tmp_path / "out", "--workers", 2)
    assert tree(tmp_path / "out") == tree(packed)
    hbpack("verify", tmp_path / "out", "--workers", 2)


def test_stages_chain_to_the_same_bytes(packed, tmp_path, sample_inputs, options):
    """pack = tokenize + plan + write."""
    out = tmp_path / "out"
    hbpack("tokenize", *sample_inputs, *options[:2], "--output", out)
    assert sorted(path.name for path in out.iterdir()) == ["rejected.jsonl", "tokens"]
    hbpack("plan", out, *options[2:])
    hbpack("write", out)
    assert tree(out) == tree(packed)


def test_planning_again_reuses_the_tokens(packed, tmp_path, sample_inputs, options):
    out = shutil.copytree(packed, tmp_path / "out", symlinks=True)
    before = times(out / "tokens")
    other = ["--groups", "2k:1,8k:2", "--gpus", "4"]
    hbpack("plan", out, *other, "--output", tmp_path / "other")
    assert "shards" in hbpack("write", tmp_path / "other").stderr
    hbpack("pack", *sample_inputs, *options, *other, "--output", out)
    assert times(out / "tokens") == before
    planned, packed_again = tree(home(tmp_path / "other")), tree(home(out))
    shards = [name for name in planned if name.startswith(("shards", "ranks"))]
    assert shards == [name for name in packed_again if name.startswith(("shards", "ranks"))] != []
    assert all(planned[name] == packed_again[name] for name in shards)


def test_running_again_does_nothing(packed, sample_inputs, options):
    before = times(packed)
    done = hbpack("pack", *sample_inputs, *options, "--output", packed)
    assert "the plan is up to date" in done.stderr
    assert "the shards are up to date" in done.stderr
    assert times(packed) == before


def test_the_manifest_and_the_ranks_agree_with_the_shards(packed):
    manifest = json.loads((packed / "hbpack.json").read_text())
    packs = read_packs(packed)
    assert [pack["pack_id"] for pack in packs] == list(range(len(packs)))
    degrees = [group["sp_size"] for group in manifest["groups"]]
    seen = []
    common = read_rows(home(packed) / "ranks/epoch-000/iterations.arrow")
    ranks = [read_rows(home(packed) / f"ranks/epoch-000/rank-{rank:05d}.arrow") for rank in range(8)]
    assert {len(rows) for rows in (common, *ranks)} == {manifest["epochs"][0]["num_iterations"]}
    by_step = {}
    for iteration, *rows in zip(common, *ranks, strict=True):
        assert len({(row["iteration"], row["group"], row["row_length"]) for row in rows}) == 1
        total = by_step.setdefault(iteration["step"], [0, 0, 0, 0, iteration])
        for rank, row in enumerate(rows):
            degree = degrees[row["group"]]
            assert row["dp_rank"] == rank // degree
            assert row["first_gpu"] == rank // degree * degree
            assert iteration["num_replicas"] * degree == 8
            if row["pack"] >= 0:
                pack = packs[row["pack"]]
                assert (pack["group"], pack["sp_size"]) == (row["group"], degree)
                assert pack["num_tokens"] <= row["row_length"]
                if row["first_gpu"] == rank:
                    seen.append(row["pack"])
                    total[0] += 1
                    total[1] += len(pack["sample_ids"])
                    total[2] += pack["num_tokens"]
                    total[3] += pack["num_loss_tokens"]
    assert sorted(seen) == list(range(len(packs)))
    for num_packs, samples, tokens, loss_tokens, row in by_step.values():
        assert row["global_num_packs"] == num_packs
        assert row["global_num_samples"] == samples
        assert row["global_num_tokens"] == tokens
        assert row["global_num_loss_tokens"] == loss_tokens


def test_checksums_are_those_of_the_files(packed):
    xxhash = pytest.importorskip("xxhash")
    manifest = json.loads((packed / "hbpack.json").read_text())
    for group in manifest["groups"]:
        for shard in group["shards"]:
            data = (home(packed) / shard["path"]).read_bytes()
            assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (shard["num_bytes"], shard["xxh3"])


def test_other_readers_read_a_shard(packed):
    """`datasets` reads shards as they are, by names that hold for each version."""
    import datasets

    manifest = json.loads((packed / "hbpack.json").read_text())
    files = [str(packed / "current" / shard["path"]) for group in manifest["groups"] for shard in group["shards"]]
    loaded = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(packed.parent / "cache"))
    assert len(loaded) == sum(group["num_packs"] for group in manifest["groups"])


def test_metrics_are_recomputed_by_hand(packed):
    """ABR, DBR, CR and Ave-T again, from the shards and rank manifests alone."""
    stats = json.loads(hbpack("stats", packed, "--json").stdout)
    manifest = json.loads((packed / "hbpack.json").read_text())
    assert manifest["metrics"] == {key: stats[key] for key in ("overall", "groups", "baseline")}
    packs = read_packs(packed)
    ranks = [rank_rows(packed, rank) for rank in range(8)]
    abr, dbr, with_sp, total, slots = [], [], 0, 0, 0
    for rows in zip(*ranks, strict=True):
        chosen = [row for row in rows if row["sp_rank"] == 0]
        mine = [packs[row["pack"]] if row["pack"] >= 0 else None for row in chosen]
        work = np.array([pack["attention_work"] if pack else 0 for pack in mine], dtype=float)
        tokens = np.array([pack["num_tokens"] if pack else 0 for pack in mine])
        degree = chosen[0]["sp_size"]
        padded = -(-tokens // degree) * degree
        abr.append((work.max() - work).sum() / (work.max() * len(work)))
        dbr.append((padded.max() - padded).sum() / (padded.max() * len(padded)))
        with_sp += tokens.sum() if degree > 1 else 0
        total += tokens.sum()
        slots += len(chosen)
    overall = stats["overall"]
    assert overall["abr"] == pytest.approx(np.mean(abr), abs=1e-9)
    assert overall["dbr"] == pytest.approx(np.mean(dbr), abs=1e-9)
    assert overall["cr"] == pytest.approx(with_sp / total, abs=1e-9)
    assert overall["ave_t"] == pytest.approx(total / slots)
    for part in (overall, stats["baseline"], *stats["groups"]):
        assert {"dbr", "pr", "abr", "cr", "ave_t", "imbalance"} <= set(part)


@pytest.fixture(scope="session")
def real_slice(shared_data, tmp_path_factory):
    """A slice of the real corpora."""
    folder = tmp_path_factory.mktemp("real")
    with (shared_data / "sft_messages.jsonl").open(encoding="utf-8") as file:
        (folder / "chats.jsonl").write_text("".join(next(file) for _ in range(200)), encoding="utf-8")
    table = pq.ParquetFile(shared_data / "long_docs.parquet").read_row_group(0)
    order = np.argsort([len(text) for text in table["text"].to_pylist()])[-8:]
    pq.write_table(table.take(order), folder / "documents.parquet", row_group_size=4)
    return [folder / "chats.jsonl", folder / "documents.parquet"]


def test_real_data_is_packed_as_transformers_encodes_it(real_slice, shared_data, tmp_path):
    """By two algorithms, the second one from the tokens of the first."""
    tokenizer, out = shared_data / "tokenizers" / "minimind-chatml", tmp_path / "out"
    options = ["--tokenizer", tokenizer, "--groups", "4k:1,16k:4", "--gpus", "8", "--output", out]
    expected = expected_samples(real_slice, tokenizer)
    for packing in ("isf", "bfd"):
        hbpack("pack", *real_slice, *options, "--packing", packing)
        assert_holds_samples(out, expected)


@pytest.mark.slow
def test_all_of_the_real_data(shared_data, tmp_path):
    inputs = [shared_data / "sft_messages.jsonl", shared_data / "long_docs.parquet"]
    tokenizer = shared_data / "tokenizers" / "minimind-chatml"
    hbpack(
        "pack", *inputs, "--tokenizer", tokenizer, "--groups", "16k:1,128k:8", "--gpus", "32",
        "--packing", "isf", "--overflow", "split", "--seed", "0", "--output", tmp_path / "out",
    )  # fmt: skip
    assert_holds_samples(tmp_path / "out", expected_samples(inputs, tokenizer))
    stats = json.loads(hbpack("stats", tmp_path / "out", "--json").stdout)
    assert stats["overall"]["cr"] < 0.6
    assert all(group["pr"] < 0.02 for group in stats["groups"])
    assert stats["overall"]["abr"] <= stats["baseline"]["abr"] / 8


def test_the_sample_corpus_is_what_the_script_makes(repo, tmp_path):
    subprocess.run([sys.executable, repo / "scripts" / "make_sample.py", tmp_path], check=True)
    assert tree(tmp_path) == tree(repo / "examples" / "sample")


def test_a_first_run_says_that_it_waits_for_kernels(monkeypatch, repo, tmp_path):
    """Compiling takes seconds, in which nothing else is printed."""
    sample, is_told, told = repo / "examples/sample", threading.Event(), []
    words = ["pack", sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--groups", "1k", "--gpus", 1]

    def note(text):
        told.append(text)
        is_told.set()

    monkeypatch.setattr(warming, "warm_up", lambda request: is_told.wait(30))
    monkeypatch.setattr("packer_cli.commands.pack_corpus.say", note)
    assert hbpack(*words, "--workers", 2, "--output", tmp_path / "out").code == 0
    assert told == ["compiling the kernels of the plan, which a later run finds compiled"]
    monkeypatch.setattr(warming, "warm_up", lambda request: None)
    assert hbpack(*words, "--workers", 2, "--output", tmp_path / "again").code == 0
    assert len(told) == 1
