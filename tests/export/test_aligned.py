"""Exports of a set that was planned with `--align`: each sample is padded to the multiple, and no row outgrows it."""

from __future__ import annotations

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.export.conftest import NUM_COMPARED, export, samples_of
from tests.export.test_formats import read_indexed
from tests.reference import read_packs

CAPACITIES, ALIGN = (1024, 8192), 16
EOS = 2


@pytest.fixture(scope="module")
def aligned(repo, tmp_path_factory):
    sample = repo / "examples" / "sample"
    output = tmp_path_factory.mktemp("aligned") / "out"
    done = run(
        main, "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer",
        "--groups", "1k:1,8k:4", "--gpus", 8, "--align", ALIGN, "--workers", 1, "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def rows(aligned):
    """The packs by id: what `--order packs` exports, row by row."""
    return read_packs(aligned)


def exported(aligned, tmp_path, name, *options):
    output = tmp_path / name
    done = export(aligned, name, output, "--order", "packs", "--shard-size", "300kB", *options)
    assert done.code == 0, done.stderr
    return output


def test_nemo_pads_inputs_to_the_multiple(aligned, rows, tmp_path):
    folder = exported(aligned, tmp_path, "nemo")
    table = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]).to_pylist()
    num_inputs = []
    for row, pack in zip(table, rows, strict=True):
        pairs = list(itertools.pairwise([*row["seq_start_id"], len(row["input_ids"])]))
        num_inputs.append(sum(end - begin - 1 for begin, end in pairs))
        assert num_inputs[-1] <= CAPACITIES[pack["group"]]
        for (ids, mask), (begin, end) in zip(samples_of(pack), pairs, strict=True):
            assert (end - begin - 1) % ALIGN == 0
            pads = end - begin - len(ids)
            assert 0 <= pads < ALIGN
            assert row["input_ids"][begin:end] == ids + [EOS] * pads
            assert row["loss_mask"][begin:end] == [*mask[1:], 0] + [0] * pads
    (described,) = json.loads((folder / "_metadata.json").read_text())
    assert described["min_packed_seqlen"] == min(num_inputs)
    assert described["packing_efficiency"] == round(sum(num_inputs) / len(rows) / 8192 * 100, 2)


def test_bridge_finds_the_samples_in_it(aligned, rows, tmp_path):
    """Its own class: physical borders are multiples, logical ones end with the last token that is no end of text."""
    module = pytest.importorskip("megatron.bridge.data.packing.parquet", exc_type=Exception)

    class Tokenizer:
        eos_id = eod = EOS

    folder = exported(aligned, tmp_path, "nemo", "--groups", "1k")
    path = str(folder / "training-*.idx.parquet")
    dataset = module.GPTSFTPackedParquetDataset(
        path, Tokenizer(), max_seq_length=1024, pad_seq_to_mult=ALIGN, prompt_template="{text} {output}",
        label_key="output",
    )  # fmt: skip
    of_group = [pack for pack in rows if pack["group"] == 0]
    assert len(dataset) == len(of_group)
    for i in range(NUM_COMPARED):
        batch = dataset.collate_fn([dataset[i]])
        samples = [ids for ids, _ in samples_of(of_group[i])]
        physical = batch["cu_seqlens_q_padded"][0].diff().tolist()
        assert all(size % ALIGN == 0 for size in physical)
        assert physical[: len(samples)] == [-(-(len(ids) - 1) // ALIGN) * ALIGN for ids in samples]
        # Of a padded sample, the last token is an input as well; its label, a pad, carries no loss.
        inputs = [ids if size >= len(ids) else ids[:-1] for ids, size in zip(samples, physical, strict=False)]
        real = [max(i + 1 for i, token in enumerate(ids) if token != EOS) for ids in inputs]
        assert batch["cu_seqlens_q"][0].diff().tolist()[: len(samples)] == real


def test_megatron_pads_its_sequences(aligned, rows, tmp_path):
    folder = exported(aligned, tmp_path, "megatron")
    _, tokens, documents = read_indexed(folder / "tokens")
    _, masks, _ = read_indexed(folder / "loss_mask")
    for pack, begin, end in zip(rows, documents[:-1], documents[1:], strict=True):
        assert sum(len(tokens[i]) for i in range(begin, end)) <= CAPACITIES[pack["group"]]
        for (ids, mask), i in zip(samples_of(pack), range(begin, end), strict=True):
            pads = -len(ids) % ALIGN
            assert tokens[i].tolist()[: len(ids)] == ids
            assert len(tokens[i]) == len(ids) + pads
            assert masks[i].tolist() == mask + [0] * pads


def test_automodel_counts_pads_beside_the_samples(aligned, rows, tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = exported(aligned, tmp_path, "automodel", "--groups", "1k")
    found = datasets.load_from_disk(str(folder))
    for row, pack in zip(found, [pack for pack in rows if pack["group"] == 0], strict=True):
        lengths = [len(ids) for ids, _ in samples_of(pack)]
        assert row["seq_lens"] == lengths
        assert sum(row["seq_lens_padded"]) == len(row["input_ids"]) == 1024
        assert all(size % ALIGN == 0 for size in row["seq_lens_padded"])
        begin = 0
        for (ids, mask), size in zip(samples_of(pack), row["seq_lens_padded"], strict=True):
            stop = begin + len(ids)
            assert row["input_ids"][begin:stop] == ids
            wanted = [token if keep else -100 for token, keep in zip(ids[1:], mask[1:], strict=True)]
            assert row["labels"][begin : begin + size] == wanted + [-100] * (size - len(wanted))
            assert row["position_ids"][begin : begin + size] == list(range(size))
            begin += size


def test_a_set_for_causal_rows_is_exported_with_a_warning(aligned, repo, tmp_path):
    sample, output = repo / "examples" / "sample", tmp_path / "out"
    done = run(
        main, "pack", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer", "--groups", "8k", "--gpus", 2,
        "--mask", "causal", "--workers", 1, "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    warning = (
        f"{str(output)!r} was planned with --mask causal, but the export keeps the borders of its samples: have the "
        "trainer attend across them, or plan with --mask document"
    )
    done = export(output, "nemo", tmp_path / "causal")
    assert done.code == 0
    assert warning in done.stderr
    assert "--mask" not in export(aligned, "nemo", tmp_path / "document").stderr
