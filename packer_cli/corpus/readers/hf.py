"""Hugging Face `datasets`: a set by name from the Hub or its cache, or a folder of `save_to_disk`.

A slice is a range of rows. A set is downloaded once, when it is discovered; every later load is from the
cache. Without a network only cached sets load, and the rest fail within seconds instead of retrying.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from packer_cli.corpus.blocks import readable, why_damaged
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap
from packer_cli.errors import InputError
from packer_cli.remote.system import can_connect

NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+){0,2}(:\w[^/]*)?")
"""name, owner/name or owner/name/config, and perhaps :split."""
CONNECT_SECONDS = 3.0
BATCH_ROWS = 10_000


def is_saved(path: str) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    is_dict, *are_parts = (
        os.path.isfile(os.path.join(path, name)) for name in ("dataset_dict.json", "state.json", "dataset_info.json")
    )
    return is_dict or all(are_parts)


def saved_path(text: str) -> tuple[str, str] | None:
    """Return (folder, split) when `text` is a saved folder, or one with `:split`; else None."""
    if is_saved(text):
        return text, ""
    folder, colon, split = text.rpartition(":")
    return (folder, split) if colon and is_saved(folder) else None


def find(text: str) -> CorpusFile:
    """Find the split of a data set that `text` names; without one, `train` or the only one there is.

    Loads a set from the Hub or the cache, which may mean a download. Raises InputError when it cannot.
    """
    saved = saved_path(text)
    if saved is not None:
        path = _saved_split(*saved)
        with readable(path, OSError):  # Without a look into the files: that may end the process.
            num_bytes = sum(map(os.path.getsize, _arrow_files(folder_of(path))))
    else:
        path = text if ":" in text else f"{text}:{_choose_split(text, _load_from_hub(text, None))}"
        load.cache_clear()  # The Hub may have another version than when this process looked last.
        num_bytes = load(path).data.nbytes
    return CorpusFile(source_id=0, path=path, format="datasets", num_bytes=num_bytes)


def folder_of(path: str) -> str:
    """Return the folder with the Arrow files of a path of `find`, which names a set that `save_to_disk` wrote."""
    folder, split = saved_path(path) or (path, "")
    return os.path.join(folder, split) if split else folder


def _saved_split(folder: str, split: str) -> str:
    listing = os.path.join(folder, "dataset_dict.json")
    if not os.path.isfile(listing):
        if split:
            raise InputError(f"{folder}:{split}: this saved data set has no splits; leave out :{split}")
        return folder
    with readable(listing), open(listing, encoding="utf-8") as file:
        splits = list(json.load(file)["splits"])
    if not split:
        return f"{folder}:{_choose_split(folder, splits)}"
    if split not in splits:
        raise InputError(f"{folder}:{split}: no such split; the data set has {', '.join(splits)}")
    return f"{folder}:{split}"


def _choose_split(name: str, splits: Any) -> str:
    names: list[str] = list(splits)
    if "train" in names or len(names) == 1:
        return "train" if "train" in names else names[0]
    raise InputError(f"{name}: say which split, as {name}:SPLIT; the data set has {', '.join(names)}")


def parts(path: str) -> list[str]:
    """List the files of a data set's rows, and of a saved one the file that names them."""
    if saved_path(path) is None:
        return [file["filename"] for file in load(path).cache_files]
    folder = folder_of(path)
    return [*_arrow_files(folder), os.path.join(folder, "state.json")]


def _arrow_files(folder: str) -> list[str]:
    with readable(folder, OSError):
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".arrow")]


@lru_cache(maxsize=16)
def load(path: str, stamp: str = "") -> Any:
    """Load the `datasets.Dataset` of a path that `find` gave; kept for each stamp, since slices share it."""
    saved = saved_path(path)
    if saved is None:
        return _load_from_hub(*path.split(":", 1))
    with readable(path):
        return _load_saved(folder_of(path))


def _load_saved(folder: str) -> Any:
    """Map the Arrow files of a saved set, of which there may be none, whatever format it was saved with.

    `datasets.load_from_disk` needs the library of that format, such as torch, and one file at least.
    """
    import datasets
    from datasets.table import MemoryMappedTable, concat_tables

    with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
        state = json.load(file)
    tables = [MemoryMappedTable.from_file(os.path.join(folder, each["filename"])) for each in state["_data_files"]]
    if not tables:
        return datasets.Dataset.from_dict({})
    info = datasets.DatasetInfo.from_directory(folder)
    return datasets.Dataset(concat_tables(tables), info=info, fingerprint=state["_fingerprint"])


def _load_from_hub(name: str, split: str | None) -> Any:
    import datasets

    repository = "/".join(name.split("/")[:2])
    config = name.split("/")[2] if name.count("/") == 2 else None
    offline = False
    try:
        with _offline_unless_reachable() as offline:
            return datasets.load_dataset(repository, config, split=split)
    except Exception as error:  # whatever a builder, the Hub or the cache may raise
        shown = name if split is None else f"{name}:{split}"
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if offline and isinstance(error, ConnectionError):
            reason = "the Hub cannot be reached, and the cache does not hold it"
        raise InputError(
            f"{shown}: no such file or directory, and not a Hugging Face data set that can be loaded "
            f"({reason}); check the name"
        ) from error


@contextmanager
def _offline_unless_reachable() -> Iterator[bool]:
    """Tell `datasets` when the Hub does not answer, where it would retry for half a minute; yields whether so."""
    import datasets
    from huggingface_hub import constants

    if datasets.config.HF_HUB_OFFLINE or _hub_answers(constants.ENDPOINT):
        yield bool(datasets.config.HF_HUB_OFFLINE)
        return
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield True
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


_hub_answers = lru_cache(maxsize=1)(partial(can_connect, timeout=CONNECT_SECONDS))


def _loaded(file: CorpusFile) -> Any:
    return load(file.path) if saved_path(file.path) is None else load(file.path, file.stamp)


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut equal ranges of rows of about `slice_bytes`."""
    data = _loaded(file)
    num_rows, num_bytes = data.num_rows, data.data.nbytes
    if not parts(file.path):  # The set is in memory.
        file = file._replace(fingerprint=str(data._fingerprint))
    rows = max(1, (slice_bytes or default_slice_bytes(num_bytes)) * num_rows // max(num_bytes, 1))
    return [
        CorpusSlice(file=file, start=start, stop=min(start + rows, num_rows), first_line=start + 1)
        for start in range(0, num_rows, rows)
    ]


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the rows of the slice, through Arrow; nothing is copied from the cache but the rows at hand."""
    from packer_cli.corpus.readers.columns import raw_batches

    data = _loaded(slice_.file)
    num_rows, num_bytes = data.num_rows, data.data.nbytes
    rows = min(max(1, rules.batch_bytes * num_rows // max(num_bytes, 1)), BATCH_ROWS)
    known = [name for name in data.column_names if name in fields]
    if known:
        data = data.select_columns(known)
    data = data.with_format("arrow")
    for start in range(slice_.start, slice_.stop, rows):
        stop = min(start + rows, slice_.stop)
        try:
            row = start + 1
            for part in data[start:stop].to_batches():
                yield from raw_batches(part, row, rules, fields)
                row += part.num_rows
        except Exception as error:
            reason = why_damaged(slice_.file.path, error)
            lost = f"rows {row} to {stop} cannot be read ({reason}) and are lost"
            yield RawBatch(rejects=[Gap(row, lost)], lost=slice_.file.num_bytes * (stop + 1 - row) // num_rows)


READER = FileReader(cut, read, parts)
