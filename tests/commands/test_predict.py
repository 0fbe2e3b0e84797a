"""What `pack(dry_run=True)` predicts, against real runs."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer_cli
from packer_cli.commands.predict import DryRun
from packer_cli.corpus import sample as sampling
from tests.reference import home

GROUPS = {"groups": "1k:1,8k:4", "gpus": 8, "workers": 1}


@pytest.fixture
def tokenizer(repo: Path) -> Path:
    return repo / "examples" / "sample" / "tokenizer"


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of 16 places of 4 KiB."""
    for name, size in {"SAMPLE_BYTES": 64 << 10, "PLACE_BYTES": 4 << 10, "_BEHIND": 1 << 10}.items():
        monkeypatch.setattr(sampling, name, size)


def text_of(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(["lorem", "ipsum", "dolor", "sit", "amet,", "consectetur", "Elitr.\n"], k=words))


def rows_of(number: int) -> list[dict[str, str]]:
    """Short texts, then ever longer ones."""
    draw = random.Random(0)
    return [{"text": text_of(draw, 5 + 100 * at // number), "id": str(at)} for at in range(number)]


def as_lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_parquet(path: Path, rows: list[dict[str, str]], row_group_size: int) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group_size)


def write_arrow(path: Path, rows: list[dict[str, str]]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)


def write_many(path: Path, rows: list[dict[str, str]]) -> None:
    path.mkdir()
    for at in range(0, len(rows), 10):
        (path / f"{at:05}.jsonl").write_bytes(as_lines(rows[at : at + 10]))


def write_texts(path: Path, rows: list[dict[str, str]]) -> None:
    path.mkdir()
    for row in rows[::10]:
        (path / f"{row['id']}.txt").write_text(row["text"] * 3)


WRITERS: dict[str, Callable[[Path, list[dict[str, str]]], object]] = {
    "a.jsonl": lambda path, rows: path.write_bytes(as_lines(rows)),
    "a.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "indented.json": lambda path, rows: path.write_text(json.dumps(rows, indent=2)),
    "groups.parquet": lambda path, rows: write_parquet(path, rows, 100),
    "one-group.parquet": lambda path, rows: write_parquet(path, rows, len(rows)),
    "a.arrow": write_arrow,
    "many": write_many,
    "texts": write_texts,
}


def close(found: DryRun, real: packer_cli.PackedSet, rel: float = 0.2) -> None:
    counts, manifest = real.plan().counts, real.manifest()
    token_bytes = sum(path.stat().st_size for path in (real.path / "tokens").glob("part-*"))
    others = [
        path.stat().st_size for path in home(real.path).rglob("*") if path.name == "plan.arrow" or "rank" in path.name
    ]
    assert found.records == pytest.approx(counts.records, rel=rel)
    assert found.rejected == pytest.approx(counts.rejected, rel=rel, abs=2)
    assert found.tokens == pytest.approx(sum(source.read.tokens for source in manifest.sources), rel=rel)
    assert found.epoch_tokens == pytest.approx(counts.tokens, rel=rel)
    assert found.token_bytes == pytest.approx(token_bytes, rel=rel)
    assert found.shard_bytes == pytest.approx(sum(shard.num_bytes for shard in manifest.shards), rel=rel)
    assert found.plan_bytes == pytest.approx(sum(others), rel=0.3)
    assert found.iterations == pytest.approx(manifest.epochs[0].num_iterations, rel=rel)


@pytest.mark.parametrize("name", WRITERS)
def test_sorted_data_of_each_format(name, tokenizer, small_samples, tmp_path):
    WRITERS[name](tmp_path / name, rows_of(4000))
    options = {"tokenizer": tokenizer, "output": tmp_path / "out", **GROUPS}
    found = packer_cli.pack(tmp_path / name, dry_run=True, **options)
    assert not (tmp_path / "out").exists()
    assert found.sampled_bytes < 0.4 * found.input_bytes
    close(found, packer_cli.pack(tmp_path / name, **options))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz"])
def test_the_front_of_compressed_data(name, tokenizer, small_samples, tmp_path):
    rows = rows_of(4000)
    random.Random(1).shuffle(rows)
    data = as_lines(rows) if name == "a.jsonl.gz" else json.dumps(rows).encode()
    (tmp_path / name).write_bytes(gzip.compress(data))
    options = {"tokenizer": tokenizer, "output": tmp_path / "out", **GROUPS}
    found = packer_cli.pack(tmp_path / name, dry_run=True, **options)
    close(found, packer_cli.pack(tmp_path / name, **options))


def test_rejects_weights_and_overflow(tokenizer, small_samples, tmp_path):
    """A tenth of one input is rejected, it counts 1.5 times, and the longest of another one are dropped."""
    bad = [row if at % 10 else {"words": row["text"]} for at, row in enumerate(rows_of(3000))]
    long = [{"text": text_of(random.Random(at), 1500 if at % 4 == 0 else 300)} for at in range(300)]
    (tmp_path / "bad.jsonl").write_bytes(as_lines(bad))
    (tmp_path / "long.jsonl").write_bytes(as_lines(long))
    options = {"tokenizer": tokenizer, "output": tmp_path / "out", "gpus": 2, "workers": 1}
    options |= {"groups": "1k:1,2k:2", "overflow": "drop", "epochs": 2}
    inputs = [f"{tmp_path / 'bad.jsonl'}@1.5", tmp_path / "long.jsonl"]
    found = packer_cli.pack(inputs, dry_run=True, **options)
    assert [each.reason[:5] for each in found.reasons] == ["no re"] or found.reasons
    close(found, packer_cli.pack(inputs, **options))


@pytest.mark.parametrize("name", ["sft_messages.jsonl", pytest.param("long_docs.parquet", marks=pytest.mark.slow)])
def test_slices_of_the_shared_corpora(name, shared_data, monkeypatch, tmp_path):
    """A twelfth of each corpus, of which the sample has a fourth."""
    monkeypatch.setattr(sampling, "SAMPLE_BYTES", 1 << 20)
    monkeypatch.setattr(sampling, "PLACE_BYTES", 64 << 10)
    source, path = shared_data / name, tmp_path / name
    if path.suffix == ".parquet":
        table = pq.read_table(source)
        some = table.filter(pa.compute.less(pa.compute.utf8_length(table["text"]), 60_000))[:600]
        pq.write_table(some, path, row_group_size=16, compression="zstd")
    else:
        path.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:2600]))
    options = {"tokenizer": shared_data / "tokenizers" / "minimind-chatml", "output": tmp_path / "out", **GROUPS}
    found = packer_cli.pack(path, dry_run=True, **options)
    close(found, packer_cli.pack(path, **options))


@pytest.mark.parametrize("validation", ["25%", "75"])
def test_what_is_excluded_or_set_aside(tokenizer: Path, tmp_path: Path, validation: str) -> None:
    path, out = tmp_path / "texts.jsonl", tmp_path / "out"
    path.write_bytes(as_lines(rows_of(400)))
    (tmp_path / "remove.txt").write_text("".join(f"texts.jsonl:{line}\n" for line in range(1, 401, 4)))
    options = {"tokenizer": tokenizer, "validation": validation, "exclude": tmp_path / "remove.txt", **GROUPS}
    predicted = packer_cli.pack(path, output=out, dry_run=True, **options)
    assert isinstance(predicted, DryRun)
    manifest = packer_cli.pack(path, output=out, **options).manifest()
    assert predicted.rejected == sum(source.read.rejected for source in manifest.sources) == 100
    assert predicted.samples == 300
    assert predicted.epoch_tokens == pytest.approx(manifest.counts.tokens, rel=0.15)
    tokens = manifest.counts.tokens + packer_cli.PackedSet(out / "validation").manifest().counts.tokens
    assert predicted.tokens == pytest.approx(tokens, rel=0.03)
