"""NeMo-RL: its data set gives the packs back. Its rules are written down here.

They are those of NVIDIA-NeMo/RL, pull request 3380, at a944f7c and of the nightly documentation of September 2026:
`nemo_rl/data/datasets/response_datasets/megatron_sft_packed.py` (`format_data`) and
`nemo_rl/data/megatron_sft_packed.py` (`split_megatron_sft_conversations`, `megatron_sft_packed_preprocessor`).
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.cli.main import main
from packer_cli.export import nemo_rl, records
from packer_cli.export.records import SetRecords
from tests.cli_runner import run
from tests.export.conftest import CAPACITY, IDENTITY, export, options_of, samples_of, used
from tests.export.conversations import Messages, good, pack, rows_of, split, write
from tests.reference import read_packs, tree

PAD = 0


def format_data(row: dict[str, Any]) -> Messages:
    messages = list(row["messages"])
    assert messages[0]["role"] == "system"
    assert messages[-1]["role"] == "assistant"
    assert all(isinstance(message["content"], str) for message in messages)
    return messages


def preprocess(messages: Messages, tokenize: Callable[[Messages], list[int]], length: int, cp: int = 1) -> dict:
    """A row: `length` ids, positions, and the borders of the conversations, the last with the pads of the row."""
    tokens: list[int] = []
    positions: list[int] = []
    borders = [0]
    for conversation in split(messages):
        ids = tokenize(conversation)
        if cp > 1:
            ids = ids + [PAD] * (-(len(tokens) + len(ids)) % (2 * cp))
        tokens += ids
        positions += range(len(ids))
        borders.append(len(tokens))
    assert len(tokens) <= length, "NeMo-RL would cut the row"
    num_pads = length - len(tokens)
    borders[-1] = length
    positions += range(positions[-1] + 1, positions[-1] + 1 + num_pads)
    return {"input_ids": tokens + [PAD] * num_pads, "positions": positions, "borders": borders}


@pytest.fixture(scope="session")
def tokenizer(repo):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(repo / "examples" / "sample" / "tokenizer")


def tokenize_with(tokenizer, template: str) -> Callable[[Messages], list[int]]:
    return lambda messages: tokenizer.apply_chat_template(messages, chat_template=template, return_dict=False)


def assert_packs(folder: Path, packs: list[dict], tokenize: Callable[[Messages], list[int]], cp: int = 1) -> None:
    """Each row is a pack, token by token and border by border."""
    rows = rows_of(folder)
    assert len(rows) == len(packs)
    for row, wanted_pack in zip(rows, packs, strict=True):
        found = preprocess(format_data(row), tokenize, CAPACITY, cp)
        wanted = [ids for ids, _ in samples_of(wanted_pack)]
        sizes = [len(ids) + (-len(ids) % (2 * cp) if cp > 1 else 0) for ids in wanted]
        begins = [0, *itertools.accumulate(sizes)]
        assert found["borders"] == [*begins[:-1], CAPACITY]
        for ids, begin, end in zip(wanted, begins[:-1], found["borders"][1:], strict=True):
            assert found["input_ids"][begin:end] == ids + [PAD] * (end - begin - len(ids))
            assert found["positions"][begin:end] == list(range(end - begin))


def test_its_data_set_gives_the_packs_back(conversations, exported, tokenizer):
    folder, packs = exported("nemo-rl"), read_packs(conversations)
    assert len(list(folder.glob("part-*.jsonl"))) > 2
    assert max(pack["num_tokens"] for pack in packs) == CAPACITY  # A full row has room for no more.
    in_use = [packs[number] for number in used(conversations, 0)]
    assert_packs(folder, in_use, tokenize_with(tokenizer, IDENTITY))
    with pytest.raises(AssertionError):
        assert_packs(folder, in_use[::-1], tokenize_with(tokenizer, IDENTITY))
    with pytest.raises(AssertionError):
        assert_packs(folder, in_use, tokenize_with(tokenizer, tokenizer.chat_template))


@pytest.mark.parametrize("prompt_format", nemo_rl.PROMPT_FORMATS)
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.filterwarnings("error:Megatron SFT packed row")
def test_its_own_preprocessor_takes_it(repo, tmp_path, tokenizer, prompt_format, cp):
    """Each of its prompt formats is known by its template, and gives the packs back."""
    own = pytest.importorskip("nemo_rl.data.megatron_sft_packed", exc_type=Exception)
    (tmp_path / "template.jinja").write_text(own._PROMPT_CONFIGS[prompt_format].chat_template)
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(200)])
    packed = pack(
        repo, tmp_path / "out", path, "--groups", f"1k:{cp}", "--align", 2 * cp, template=tmp_path / "template.jinja"
    )
    done = export(packed, "nemo-rl", tmp_path / "dir", "--order", "packs")
    assert f"prompt_format={prompt_format} " in done.stdout
    assert f"context_parallel_size={cp} " in done.stdout
    for row, pack_ in zip(rows_of(tmp_path / "dir"), read_packs(packed), strict=True):
        found = own.megatron_sft_packed_preprocessor(
            {"packed_messages": row["messages"]}, None, tokenizer, CAPACITY, 0, prompt_format=prompt_format,
            context_parallel_size=cp, pad_token="<|pad|>",
        )  # fmt: skip
        borders = found["packed_cu_seqlens"].tolist()
        for (ids, _), begin, end in zip(samples_of(pack_), borders[:-1], borders[1:], strict=True):
            assert found["input_ids"][begin : begin + len(ids)].tolist() == ids
            assert found["position_ids"][begin:end].tolist() == list(range(end - begin))
            assert end == CAPACITY or end - begin < len(ids) + 2 * cp


def test_only_role_and_content_are_written(exported):
    for path in exported("nemo-rl").glob("*.jsonl"):
        for line in path.open():
            row = json.loads(line)
            assert [*row] == ["messages"]
            assert {tuple(message) for message in row["messages"]} == {("role", "content")}


def test_inputs_of_all_kinds(repo, tmp_path, tokenizer):
    """Several in one set: files that share a part, columns, compressed ones, ShareGPT, and weights."""
    for number in range(3):
        write(tmp_path / "folder" / f"{number}.jsonl", [{"id": i, "messages": good(i)} for i in range(number, 60, 3)])
    pq.write_table(pa.Table.from_pylist([{"messages": good(i)} for i in range(60, 120)]), tmp_path / "a.parquet")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps({"messages": good(i)}) + "\n\n" for i in range(120, 150)))
    (tmp_path / "c.json").write_text(json.dumps([{"messages": good(i)} for i in range(150, 170)]))
    turns = [{"from": "human", "value": "Päivää?\n\u2028"}, {"from": "gpt", "value": 'Good "day".'}]
    write(tmp_path / "d.jsonl", [{"messages": []}, {"conversations": turns, "system": "Be kind."}])
    names = ["folder", "a.parquet@2", "b.jsonl.gz", "c.json", "d.jsonl"]
    packed = pack(repo, tmp_path / "out", *(tmp_path / name for name in names))
    assert export(packed, "nemo-rl", tmp_path / "dir", "--order", "packs").code == 0
    assert_packs(tmp_path / "dir", read_packs(packed), tokenize_with(tokenizer, IDENTITY))
    found = [message for row in rows_of(tmp_path / "dir") for message in split(row["messages"])]
    assert len(found) == 60 + 2 * 60 + 30 + 20 + 1
    assert sorted(map(str, found)) == sorted(
        map(str, [*map(good, range(170)), *map(good, range(60, 120)), [
            {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Päivää?\n\u2028"},
            {"role": "assistant", "content": 'Good "day".'},
        ]])
    )  # fmt: skip


def test_a_slice_of_a_large_file_each(repo, tmp_path, tokenizer, monkeypatch):
    """A file of several parts, of which some slices hold no sample that is wanted."""
    from packer_cli.corpus.readers import stream

    monkeypatch.setattr(stream, "default_slice_bytes", lambda num_bytes: 4096)
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(300)])
    monkeypatch.setattr("packer_cli.tokens.input_slices.GROUP_BYTES", 0)
    packed = pack(repo, tmp_path / "out", path)
    assert len(list((packed / "tokens").glob("*.arrow"))) > 5
    read = SetRecords._read_slice
    slices = []

    def noting(self, reader, slice_, samples):
        slices.append(slice_.start)
        return read(self, reader, slice_, samples)

    monkeypatch.setattr(SetRecords, "_read_slice", noting)
    assert export(packed, "nemo-rl", tmp_path / "dir", "--order", "packs").code == 0
    assert_packs(tmp_path / "dir", read_packs(packed), tokenize_with(tokenizer, IDENTITY))
    assert slices == sorted(set(slices))  # Each slice once, in order.
    assert len(slices) > 5
    slices.clear()
    records = SetRecords(packed)
    wanted = records.store.lengths() < 0
    wanted[[3, 290]] = True
    found = [(sample, document and document.messages) for sample, document in records.read(wanted)]
    assert found == [(3, good(3)), (290, good(290))]
    assert len(slices) == 2


@pytest.mark.parametrize("options", [["--index-only"], ["--validation", 20]])
def test_other_sets(repo, tmp_path, tokenizer, options):
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(100)])
    packed = pack(repo, tmp_path / "out", path, *options)
    if "--validation" in options:
        packed = packed / "validation"
    done = export(packed, "nemo-rl", tmp_path / "dir", "--order", "packs")
    assert done.code == 0, done.stderr
    conversations = [each for row in rows_of(tmp_path / "dir") for each in split(row["messages"])]
    assert len(conversations) == (20 if "--validation" in options else 100)
    if "--validation" in options:
        assert_packs(tmp_path / "dir", read_packs(packed), tokenize_with(tokenizer, IDENTITY))


# Context parallelism, the prompt format and the command line


def test_aligned_samples_fit_with_context_parallelism(repo, tmp_path, tokenizer):
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(400)])
    packed = pack(repo, tmp_path / "out", path, "--align", 4, "--groups", "1k:2")
    done = export(packed, "nemo-rl", tmp_path / "dir", "--order", "packs")
    assert "policy.megatron_cfg.context_parallel_size=2 policy.sequence_packing.enabled=true" in done.stdout
    tokenize = tokenize_with(tokenizer, IDENTITY)
    assert_packs(tmp_path / "dir", read_packs(packed), tokenize, cp=2)
    assert_packs(tmp_path / "dir", read_packs(packed), tokenize)
    with pytest.raises(AssertionError, match="would cut"):
        assert_packs(tmp_path / "dir", read_packs(packed), tokenize, cp=16)
    packed = pack(repo, tmp_path / "unaligned", path, "--groups", "1k:2")
    assert "context_parallel_size=1 (" in export(packed, "nemo-rl", tmp_path / "unaligned-dir").stdout


def test_what_is_printed(conversations, tmp_path):
    done = export(conversations, "nemo-rl", tmp_path / "dir")
    assert (
        "Next: uv run examples/run_sft.py data.train.dataset_name=megatron_sft_packed "
        f"++data.train.data_path={tmp_path}/dir/part-\\*.jsonl ++data.train.chat_key=messages "
        "++data.train.megatron_sft.prompt_format=identity data.max_input_seq_length=1024 data.shuffle=false "
        "policy.max_total_sequence_length=1024 policy.train_micro_batch_size=1 policy.dtensor_cfg.enabled=false "
        "policy.megatron_cfg.enabled=true policy.megatron_cfg.context_parallel_size=1 (docs/export.md, nemo-rl)\n"
    ) in done.stdout
    first, last = done.stderr.splitlines()
    assert first == "reading 2,000 conversations again from the inputs"
    assert last.startswith("exported ")


def test_a_template_file_may_end_with_a_line_feed(repo, tmp_path):
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(9)])
    (tmp_path / "identity.jinja").write_text(IDENTITY + "\n")
    packed = pack(repo, tmp_path / "out", path, template=str(tmp_path / "identity.jinja"))
    assert "prompt_format=identity " in export(packed, "nemo-rl", tmp_path / "dir").stdout


def test_another_template(repo, tmp_path, tokenizer):
    """The tokenizer's own ends a conversation with EOS by itself, and that is no prompt format of NeMo-RL."""
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(50)])
    packed = pack(repo, tmp_path / "out", path, template=None)
    done = export(packed, "nemo-rl", tmp_path / "dir", "--order", "packs")
    assert done.code == 0
    assert (
        f"the chat template of {str(packed)!r} is not one of NeMo-RL's, which tokenizes again: rows keep their "
        "lengths only if its prompt_format gives the same tokens; pack with --chat-template, the template of "
        "identity, nemotron-nano-v2, nemotron-h-aligned\n"
    ) in done.stderr
    assert "prompt_format=PROMPT_FORMAT " in done.stdout
    assert "context_parallel_size=1, with a PROMPT_FORMAT whose template gives the tokens of the set's own (" in (
        done.stdout
    )
    assert_packs(tmp_path / "dir", read_packs(packed), tokenize_with(tokenizer, tokenizer.chat_template))


def test_a_template_of_another_prompt_format(repo, tmp_path, tokenizer, monkeypatch):
    """Found by its fingerprint, also where it is the tokenizer's own."""
    import xxhash

    template = tokenizer.chat_template
    monkeypatch.setitem(nemo_rl.PROMPT_FORMATS, "mine", xxhash.xxh3_128_hexdigest(template.encode()))
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(50)])
    packed = pack(repo, tmp_path / "out", path, template=None)
    done = export(packed, "nemo-rl", tmp_path / "dir", "--order", "packs")
    assert "prompt_format=mine " in done.stdout
    assert "NeMo-RL" not in done.stderr


def test_a_loss_that_is_not_its_own(repo, tmp_path):
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(9)])
    packed = pack(repo, tmp_path / "out", path, "--chat-template", IDENTITY, "--append-eos", "never", template=None)
    done = export(packed, "nemo-rl", tmp_path / "dir")
    assert done.code == 0
    assert (
        "NeMo-RL trains as with --loss-on all where prompt_format is identity, and the set was packed with --loss-on "
        "completion\n"
    ) in done.stderr


# Runs that end early


def test_the_work_folder_is_empty_again(exported):
    assert not (exported("nemo-rl") / ".export").exists()


@pytest.mark.parametrize("place", ["reading", "writing"])
def test_an_interrupted_run_goes_on(conversations, exported, tmp_path, monkeypatch, place):
    output, options = tmp_path / "dir", options_of("nemo-rl")
    read, write_part = SetRecords.read, nemo_rl.Exporter.write_part

    def reading(self, wanted):
        yield from itertools.islice(read(self, wanted), 100)
        raise KeyboardInterrupt

    def writing(self, job, part, sink):
        if part.number == 2:
            raise KeyboardInterrupt
        return write_part(self, job, part, sink)

    with monkeypatch.context() as patch:
        if place == "reading":
            patch.setattr(SetRecords, "read", reading)
        else:
            patch.setattr(nemo_rl.Exporter, "write_part", writing)
        assert export(conversations, "nemo-rl", output, *options, workers=1).code == 130
    left = [path.name for path in output.rglob("*")] if output.exists() else []
    assert not any("texts" in name or "offsets" in name for name in left)
    assert (place == "writing") == ("part-00000.json" in left)
    done = export(conversations, "nemo-rl", output, *options)
    assert done.code == 0
    # What the parts that are there hold is not read again.
    assert ("reading 2,000 conversations" in done.stderr) == (place == "reading")
    assert tree(output) == tree(exported("nemo-rl"))


def test_tasks_of_an_array(conversations, exported, tmp_path):
    words = ["export", conversations, "--to", "nemo-rl", *options_of("nemo-rl"), "--output", tmp_path / "dir"]
    for index in (1, 0):
        done = run(main, *words, "--shard", f"{index}/2")
        assert done.code == 0, done.stderr
    assert tree(tmp_path / "dir") == tree(exported("nemo-rl"))


def test_a_process_of_its_own_opens_the_texts(conversations, exported, tmp_path, monkeypatch):
    """As Ray's workers do: they unpickle the work."""
    import pickle

    from packer_cli.engine.local import LocalEngine

    write = LocalEngine.run_writing
    monkeypatch.setattr(
        LocalEngine,
        "run_writing",
        lambda self, function, tasks: write(self, pickle.loads(pickle.dumps(function)), tasks),
    )
    assert export(conversations, "nemo-rl", tmp_path / "dir", *options_of("nemo-rl")).code == 0
    assert tree(tmp_path / "dir") == tree(exported("nemo-rl"))


def test_texts_are_taken_by_sample(tmp_path):
    import numpy as np

    from packer_cli.format.arrays import Lists

    given = {1: b"one", 4: b"four", 7: b"seven"}
    with records.written_texts(iter(given.items()), 8, tmp_path / "work" / "texts") as file:
        found = records.open_texts(file)
        samples = Lists(np.array([0, 1, 4]), np.array([7, 1, 7, 4]))
        assert records.joined_texts(found, samples, b"[", b",", b"]").to_pybytes() == b"[seven][one,seven,four]"
    assert not (tmp_path / "work").exists()
