"""An independent reading of a corpus and of a packed set: Hugging Face libraries and pyarrow, nothing of hbpack."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.naive.loss_spans import spans_of

# Minimind's template has no {% generation %}: these are the places where its author would put the tags.
MINIMIND_TURN = (
    """{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + """
    """'\\n</think>\\n\\n' + content.lstrip('\\n') }}"""
)
MINIMIND_TURN_TAGGED = (
    """{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}"""
    """{%- generation %}{{- content.lstrip('\\n') + '<|im_end|>' }}{% endgeneration %}"""
)
MINIMIND_END = """        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == "tool" %}"""
MINIMIND_END_TAGGED = """        {{- '\\n' }}\n    {%- elif message.role == "tool" %}"""


def records_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def expected_samples(paths: list[Path], tokenizer_folder: Path) -> list[tuple[list[int], list[int]]]:
    """(ids, loss mask) of each record, as transformers gives them; a text ends with EOS."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    template = tokenizer.chat_template
    if "generation %}" not in template:
        assert MINIMIND_TURN in template
        assert MINIMIND_END in template
        template = template.replace(MINIMIND_TURN, MINIMIND_TURN_TAGGED).replace(MINIMIND_END, MINIMIND_END_TAGGED)
    samples = []
    for path in paths:
        for record in records_of(path):
            if "messages" in record:
                plain = tokenizer.apply_chat_template(record["messages"], return_dict=False)
                out = tokenizer.apply_chat_template(
                    record["messages"], chat_template=template, return_dict=True, return_assistant_tokens_mask=True
                )
                assert out["input_ids"] == plain
                samples.append((plain, out["assistant_masks"]))
            else:
                ids = [*tokenizer(record["text"])["input_ids"], tokenizer.eos_token_id]
                samples.append((ids, [1] * len(ids)))
    return samples


def read_rows(path: Path) -> list[dict[str, Any]]:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist()


def rank_rows(folder: Path, rank: int, epoch: str = "epoch-000") -> list[dict[str, Any]]:
    """What a rank reads in an epoch: its rows of each iteration, and all that follows from them."""
    folder = home(folder)
    groups = json.loads((folder / "hbpack.json").read_text())["groups"]
    found = []
    for path in (folder / "ranks" / epoch).glob("rank-*.arrow"):
        first, *last = map(int, path.stem.split("-")[1:])
        if first <= rank <= (last or [first])[0]:
            iterations = list(read_rows(path.parent / "iterations.arrow"))
            for row in read_rows(path):
                common = iterations[row["iteration"]]
                group = groups[row["group"]]
                shard, place = -1, -1
                for number, each in enumerate(group["shards"]):
                    if 0 <= row["pack"] - each["first_pack"] < each["num_packs"]:
                        shard, place = number, row["pack"] - each["first_pack"]
                found.append(
                    {
                        **common,
                        **row,
                        "shard": shard,
                        "row": place,
                        "sp_size": group["sp_size"],
                        "sp_rank": rank - row["first_gpu"],
                        "place": rank - row["first_gpu"],
                        "dp_size": common["num_replicas"],
                        "checkpoint_layers": group["checkpoint_layers"],
                    }
                )
    return found


def store_parts(folder: Path) -> list[Path]:
    """The parts of a set's token store, in the order of the samples."""
    index = json.loads((folder / "tokens/tokens.json").read_text(encoding="utf-8"))
    return [folder / "tokens" / part["path"] for part in index["parts"]]


def read_packs(folder: Path) -> list[dict[str, Any]]:
    """Rows of all shards in the order of the manifest, arrays as numpy, with the `loss_mask` of their loss spans."""
    folder = home(folder)
    manifest = json.loads((folder / "hbpack.json").read_text())
    packs = []
    for group in manifest["groups"]:
        for shard in group["shards"]:
            table = pa.ipc.open_file(pa.memory_map(str(folder / shard["path"]))).read_all()
            columns = {name: table.column(name) for name in table.schema.names}
            for i in range(len(table)):
                row = {
                    name: np.array(column[i].values) if pa.types.is_list(column.type) else column[i].as_py()
                    for name, column in columns.items()
                }
                starts, stops = row["loss_starts"].tolist(), row["loss_stops"].tolist()
                row["loss_mask"] = np.zeros(row["num_tokens"], dtype=np.int8)
                for start, stop in zip(starts, stops, strict=True):
                    row["loss_mask"][start:stop] = 1
                assert (starts, stops) == spans_of(row["loss_mask"].tolist())
                packs.append(row)
    return packs


def assert_holds_samples(folder: Path, expected: list[tuple[list[int], list[int]]]) -> None:
    """Every sample is in exactly one pack, or its pieces are, with these ids and this mask."""
    pieces: dict[int, list[tuple[int, np.ndarray, np.ndarray]]] = defaultdict(list)
    for pack in read_packs(folder):
        borders = pack["cu_seqlens"]
        assert borders[0] == 0
        assert borders[-1] == len(pack["input_ids"]) == len(pack["loss_mask"]) == pack["num_tokens"]
        assert pack["num_loss_tokens"] == pack["loss_mask"].sum()
        assert pack["attention_work"] == (np.diff(borders).astype(np.int64) ** 2).sum()
        assert len(borders) - 1 == len(pack["sample_ids"]) == len(pack["sample_starts"]) == len(pack["source_ids"])
        for i, (sample, start) in enumerate(zip(pack["sample_ids"], pack["sample_starts"], strict=True)):
            cut = slice(borders[i], borders[i + 1])
            pieces[int(sample)].append((int(start), pack["input_ids"][cut], pack["loss_mask"][cut]))
    assert sorted(pieces) == list(range(len(expected)))
    for sample, (ids, mask) in enumerate(expected):
        parts = sorted(pieces[sample], key=lambda part: part[0])
        starts = [part[0] for part in parts]
        assert starts == np.cumsum([0, *(len(part[1]) for part in parts[:-1])]).tolist(), sample
        assert np.array_equal(np.concatenate([part[1] for part in parts]), ids), sample
        wanted = np.array(mask)
        wanted[starts] = 0  # Nothing predicts the first token of a piece.
        assert np.array_equal(np.concatenate([part[2] for part in parts]), wanted), sample


def tree(folder: Path) -> dict[str, bytes]:
    """All files with their bytes, but those that hold times, and what a link, or a copy through it, gives again."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    left_out = {"inputs.json", "versions.jsonl", "derived.jsonl", "current"}
    return {str(path): (folder / path).read_bytes() for path in paths if not left_out & {path.name, path.parts[0]}}


def read_mds(path: Path, described: dict[str, Any]) -> list[dict[str, Any]]:
    """A reader of a shard from the description of the format."""
    data = path.read_bytes()
    (num_samples,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{num_samples + 1}I", data, 4)
    config = json.loads(data[4 + 4 * (num_samples + 1) : offsets[0]])
    assert config == {key: described[key] for key in config}
    assert offsets[-1] == len(data)
    rows = []
    for begin, end in itertools.pairwise(offsets):
        at, sizes = begin, []
        for size in config["column_sizes"]:
            if size is None:
                (size,) = struct.unpack_from("<I", data, at)
                at += 4
            sizes.append(size)
        row = {}
        names = zip(config["column_names"], config["column_encodings"], sizes, strict=True)
        for name, encoding, size in names:
            row[name] = decode_mds(encoding, data[at : at + size])
            at += size
        assert at == end
        rows.append(row)
    return rows


def decode_mds(encoding: str, data: bytes) -> Any:
    if encoding == "int":
        return struct.unpack("<q", data)[0]
    num_axes, width = data[0] >> 2, 1 << (data[0] & 3)
    assert num_axes == 1
    values = np.frombuffer(data, encoding.removeprefix("ndarray:"), offset=1 + width)
    assert len(values) == int.from_bytes(data[1 : 1 + width], "little")
    return values


def home(out: str | Path) -> Path:
    """The folder with the files of a set: its current version's, or the folder of a set without versions."""
    out = Path(out)
    if out.name == "validation" and not (out / "hbpack.json").exists():
        return home(out.parent) / out.name
    folder = json.loads((out / "hbpack.json").read_text(encoding="utf-8")).get("folder")
    return out / folder if folder else out


def current_tree(out: Path) -> dict[str, bytes]:
    """The `tree` of a set without the files that only its earlier versions need."""
    folder = home(out).name
    parts = {path.stem.partition("-")[2] for path in store_parts(out)} if (out / "tokens").is_dir() else set()

    def is_current(path: str) -> bool:
        first, _, rest = path.partition("/")
        if first == "tokens":
            kind, _, part = Path(rest).stem.partition("-")
            return kind not in ("part", "rejected") or part in parts
        return first == folder or not re.fullmatch("[0-9a-f]{32}", first)

    return {path: data for path, data in tree(out).items() if is_current(path)}


def remove_written(out: Path) -> None:
    """Remove the current version of a set, as if `hbpack write` had not run."""
    shutil.rmtree(home(out))
    for name in ("hbpack.json", "versions.jsonl", "current"):
        (out / name).unlink()
