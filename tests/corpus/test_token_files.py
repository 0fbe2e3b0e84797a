"""Files of token ids that other programs wrote: Megatron, datatrove and dolma."""

from __future__ import annotations

import random
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packer_cli.corpus.discover import discover
from packer_cli.corpus.readers import token_files
from packer_cli.errors import ConfigError, InputError, TokenizerError

from .helpers import read_all

EOS = 2
RNG = np.random.default_rng(0)
DOCUMENTS = [[*RNG.integers(3, 60, n).tolist(), EOS] for n in (4, 1, 30, 2, 0, 17, 9)]
MASKS = [RNG.integers(0, 2, len(document)).tolist() for document in DOCUMENTS]
TOKENIZER = {"vocab_size": 64, "eos_id": EOS}


def write_megatron(path: Path, documents: list[list[int]] = DOCUMENTS, dtype: str = "uint16") -> Path:
    """A twin of Megatron's IndexedDatasetBuilder, with a document for each sequence; gives the `.bin`."""
    codes = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
    lengths = np.array([len(document) for document in documents], np.int32)
    ends = np.cumsum(lengths, dtype=np.int64) * np.dtype(dtype).itemsize
    path.write_bytes(np.concatenate(documents).astype(dtype).tobytes())
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, codes[dtype], len(lengths), len(lengths) + 1)
    starts, borders = np.append(0, ends[:-1]), np.arange(len(lengths) + 1)
    path.with_suffix(".idx").write_bytes(head + lengths.tobytes() + starts.tobytes() + borders.tobytes())
    return path


def write_datatrove(path: Path, documents: list[list[int]] = DOCUMENTS, dtype: str = "uint16") -> Path:
    """A twin of datatrove's TokenizedFile."""
    path.write_bytes(np.concatenate(documents).astype(dtype).tobytes())
    ends = np.cumsum([len(document) for document in documents])
    Path(f"{path}.index").write_bytes(ends.astype("<u8").tobytes())
    Path(f"{path}.metadata").write_text("tokenizer|2\n")
    return path


def write_dolma(path: Path, documents: list[list[int]] = DOCUMENTS, dtype: str = "uint16") -> Path:
    """A twin of dolma's MemmapWriter."""
    ids = np.concatenate(documents)
    memmap = np.memmap(path, mode="w+", dtype=dtype, shape=ids.shape)
    memmap[:] = ids
    memmap.flush()
    return path


WRITERS: dict[str, Callable[..., Path]] = {"a.bin": write_megatron, "a.ds": write_datatrove, "a.npy": write_dolma}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("batch_tokens", [1, 20, 1 << 20])
@pytest.mark.parametrize("slice_bytes", [1, 40, None])
def test_every_document_is_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, batch_tokens: int, slice_bytes: int | None
) -> None:
    monkeypatch.setattr(token_files, "BATCH_TOKENS", batch_tokens)
    path = WRITERS[name](tmp_path / name)
    documents, rejects = read_all(path, slice_bytes=slice_bytes, **TOKENIZER)
    assert not rejects
    assert [each.input_ids for each in documents] == DOCUMENTS
    lines = np.append(1, np.cumsum(list(map(len, DOCUMENTS)))[:-1] + 1) if name == "a.npy" else range(1, 8)
    assert [each.line for each in documents] == list(lines)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("a.bin", dtype) for dtype in ("uint8", "int8", "int16", "int32", "int64", "uint16")]
    + [("a.ds", "uint32"), ("a.npy", "uint32")],
)
def test_every_dtype_is_read(tmp_path: Path, name: str, dtype: str) -> None:
    path = WRITERS[name](tmp_path / name, dtype=dtype)
    for vocab_size in (64, 100_000) if name != "a.npy" or dtype == "uint32" else (64,):
        documents, rejects = read_all(path, vocab_size=vocab_size, eos_id=EOS)
        assert not rejects
        assert [each.input_ids for each in documents] == DOCUMENTS


def test_what_megatron_wrote_is_read(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of what it misses on a machine without a GPU.
        indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    import torch

    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=np.int32)
    builder.add_document(torch.tensor(np.concatenate(DOCUMENTS[:3])), [len(each) for each in DOCUMENTS[:3]])
    for document in DOCUMENTS[3:]:
        builder.add_item(torch.tensor(document))
        builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))
    for name in ("a.bin", "a.idx", "a", ""):
        documents, rejects = read_all(tmp_path / name)
        assert not rejects
        assert [each.input_ids for each in documents] == DOCUMENTS


def test_masks_of_datatrove_and_of_an_export_are_kept(tmp_path: Path) -> None:
    path = write_datatrove(tmp_path / "a.ds")
    Path(f"{path}.loss").write_bytes(bytes(bit for mask in MASKS for bit in mask))
    (tmp_path / "b").mkdir()
    write_megatron(tmp_path / "b" / "tokens.bin")
    write_megatron(tmp_path / "b" / "loss_mask.bin", MASKS, "uint8")
    for each in (path, tmp_path / "b"):
        documents, rejects = read_all(each)
        assert not rejects
        assert [each.input_ids for each in documents] == DOCUMENTS
        assert [list(map(int, each.loss_mask)) for each in documents] == MASKS


def test_the_last_document_may_lack_eos(tmp_path: Path) -> None:
    path = write_dolma(tmp_path / "a.npy", [[5, EOS], [6, 7]])
    assert [each.input_ids for each in read_all(path, **TOKENIZER)[0]] == [[5, EOS], [6, 7]]


@pytest.mark.parametrize("name", WRITERS)
def test_long_documents_are_rejected(tmp_path: Path, name: str) -> None:
    documents, rejects = read_all(WRITERS[name](tmp_path / name), max_record_bytes=40, **TOKENIZER)
    assert [each.input_ids for each in documents] == [each for each in DOCUMENTS if len(each) <= 20]
    assert [reject.reason for reject in rejects] == ["longer than 40 bytes, the limit of --max-record-bytes"]


def test_folders_take_pairs_alone(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin")
    write_datatrove(tmp_path / "b.ds")
    write_dolma(tmp_path / "c.npy")
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    (tmp_path / "c.csv.gz").write_bytes(b"")
    assert [Path(file.path).name for file in discover([str(tmp_path)])[1]] == ["a.bin", "b.ds", "c.npy"]


def swap(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def cut_short(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def say(path: Path) -> str:
    with pytest.raises((InputError, TokenizerError)) as caught:
        read_all(path, vocab_size=64)
    return str(caught.value).replace(f"{path.parent}/", "")


FIX = "correct it, or leave it out"


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    megatron, datatrove = write_megatron(tmp_path / "a.bin"), write_datatrove(tmp_path / "a.ds")
    index = tmp_path / "a.idx"
    whole = index.read_bytes()
    cut_short(index, 100)
    assert say(megatron) == (f"a.idx: cannot be read: an index of 7 sequences has 182 bytes, this file has 100; {FIX}")
    cut_short(index, 10)
    assert say(megatron) == f"a.idx: cannot be read: an index has at least 34 bytes, this file has 10; {FIX}"
    index.write_bytes(b"X" + whole[1:])
    assert say(megatron) == f"a.idx: cannot be read: not an index of Megatron's IndexedDataset, version 1; {FIX}"
    index.write_bytes(whole)
    swap(index, 17, b"\x07")
    assert say(megatron) == (
        f"a.idx: cannot be read: its ids have the dtype of code 7, which is not an integer; {FIX}"
    )
    index.unlink()
    assert say(megatron) == f"a.bin: has no index beside it; hbpack looks for {index.name}"

    tokens, mask = write_megatron(tmp_path / "tokens.bin"), write_megatron(tmp_path / "loss_mask.bin", MASKS, "uint8")
    swap(tmp_path / "loss_mask.idx", 17, b"\x07")
    assert say(tokens) == (
        "loss_mask.idx: cannot be read: it has numbers of dtype 7, such as loss weights; a mask has integers, 0 and 1"
        f"; {FIX}"
    )
    write_megatron(mask, MASKS[:-1], "uint8")
    assert say(tokens) == f"loss_mask.bin: cannot be read: its sequences are not those of tokens.bin; {FIX}"

    cut_short(datatrove, 20)
    assert say(datatrove) == (
        "a.ds: cannot be read: its index ends at token 70, so it must have 2 or 4 bytes for each, but it has 20 "
        f"bytes; {FIX}"
    )
    write_datatrove(datatrove)
    Path(f"{datatrove}.loss").write_bytes(b"1")
    assert say(datatrove) == f"a.ds.loss: cannot be read: it has 1 bytes for 70 tokens; {FIX}"
    swap(Path(f"{datatrove}.index"), 8, bytes(8))
    assert say(datatrove) == f"a.ds.index: cannot be read: document 2 ends before it begins; {FIX}"
    cut_short(Path(f"{datatrove}.index"), 9)
    assert say(datatrove) == f"a.ds.index: cannot be read: an index has 8 bytes a document, this file has 9; {FIX}"

    np.save(tmp_path / "a.npy", np.arange(9))
    assert say(tmp_path / "a.npy") == (
        "a.npy: cannot be read: it was saved by numpy.save, and hbpack reads .npy files of token ids without a header,"
        f" as dolma and array.tofile write them; {FIX}"
    )
    assert say(write_dolma(tmp_path / "b.npy")) == (
        "b.npy: its documents end at EOS, and the tokenizer has none; name a token of its vocabulary with "
        "--eos-token TOKEN"
    )


def test_what_is_missing_from_a_file_is_rejected(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a.bin")
    cut_short(path, 80)
    documents, rejects = read_all(path)
    assert [each.input_ids for each in documents] == DOCUMENTS[:3]
    assert rejects == [(4, "the index puts sequences 4 to 7 outside the file; they are lost")]
    path = write_dolma(tmp_path / "a.npy")
    cut_short(path, 139)
    documents, rejects = read_all(path, **TOKENIZER)
    assert [each.input_ids for each in documents] == [*DOCUMENTS[:-1], DOCUMENTS[-1][:-1]]
    assert rejects == [(70, "the file ends within an id of 2 bytes; the last 1 of its bytes are lost")]


@pytest.mark.parametrize("name", WRITERS)
def test_damage_ends_in_rejects_or_one_line(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    (tmp_path / "whole").mkdir()
    path = WRITERS[name](tmp_path / "whole" / name)
    if name == "a.ds":
        Path(f"{path}.loss").write_bytes(bytes(bit for mask in MASKS for bit in mask))
    num_read, errors = 0, list[str]()
    for _ in range(150):
        shutil.copytree(path.parent, tmp_path / "b", dirs_exist_ok=True)
        victim = rng.choice(sorted((tmp_path / "b").iterdir()))
        data = bytearray(victim.read_bytes())
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([0, 1, 5]) if data else 0):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
        try:
            documents, _ = read_all(tmp_path / "b" / name, slice_bytes=50, **TOKENIZER)
        except InputError as error:
            errors.append(str(error))
        else:
            num_read += bool(documents)
    assert num_read > 20
    assert not any("\n" in error for error in errors)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = write_dolma(tmp_path / "a.npy")
    with pytest.raises(ConfigError) as caught:
        read_all(path, schema="text", **TOKENIZER)
    assert str(caught.value) == f"{path}: holds token ids, not text records; give --schema auto or tokens"
    with pytest.raises(ConfigError) as caught:
        read_all(path, items="pairs", **TOKENIZER)
    assert str(caught.value) == f"{path}: holds token ids, not preference records; leave out --items pairs"
