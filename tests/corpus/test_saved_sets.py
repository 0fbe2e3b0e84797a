"""Folders of `save_to_disk`: whatever format they were saved with, and without any rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from packaging.version import Version

from packer_cli.errors import InputError

from .helpers import TEXT, TOKENS, read_all
from .test_discover import paths

FORMATS = ["numpy", "torch", "tensorflow", "jax", "pandas", "polars", "arrow", "of-a-library-to-come"]
"""Some of their libraries are installed; `datasets` sees torch only where it was imported without `USE_TORCH=0`."""


@pytest.fixture(autouse=True)
def no_bars() -> None:
    datasets.disable_progress_bars()


def save(rows: Any, folder: Path, kind: str | None = None, num_shards: int | None = None) -> Path:
    """Save rows as a process that sees the library of the format would."""
    rows.save_to_disk(str(folder), num_shards=num_shards)
    path = folder / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"_format_type": kind, "_format_columns": rows.column_names[:1]}))
    return folder


def nothing(row: dict[str, Any]) -> datasets.Dataset:
    """Rows of which a filter left none: `datasets` writes no Arrow file of them."""
    none = datasets.Dataset.from_list([row]).filter(lambda row: False)
    return none.flatten_indices()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("row", [TEXT, TOKENS], ids=["text", "tokens"])
def test_the_saved_format_does_not_matter(tmp_path: Path, row: dict[str, Any], kind: str) -> None:
    rows = datasets.Dataset.from_list([row] * 3)
    plain = read_all(save(rows, tmp_path / "plain"))
    assert len(plain[0]) == 3
    assert read_all(save(rows, tmp_path / "formatted", kind, num_shards=2)) == plain


def test_a_split_and_a_set_in_a_folder_of_another_format(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([TEXT, TEXT])
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(str(tmp_path / "set"))
    save(rows, tmp_path / "set/test", "torch")
    save(rows, tmp_path / "one", "jax")
    assert len(read_all(f"{tmp_path}/set:test")[0]) == 2
    assert len(read_all(tmp_path)[0]) == 4


@pytest.mark.parametrize("row", [TEXT, TOKENS], ids=["text", "tokens"])
def test_an_empty_set_holds_no_records(tmp_path: Path, row: dict[str, Any]) -> None:
    save(datasets.Dataset.from_list([row]), tmp_path / "both/full")
    save(nothing(row), tmp_path / "both/none", "torch")
    if Version(datasets.__version__) >= Version("5.2"):  # Earlier ones write a file without rows.
        assert not list((tmp_path / "both/none").glob("*.arrow"))
    assert read_all(tmp_path / "both/none") == ([], [])
    assert paths(tmp_path / "both") == [f"{tmp_path}/both/full", f"{tmp_path}/both/none"]
    assert len(read_all(tmp_path / "both")[0]) == len(read_all(tmp_path / "both/*")[0]) == 1


def test_an_empty_split(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([TEXT])
    datasets.DatasetDict(train=rows, test=nothing(TEXT)).save_to_disk(str(tmp_path / "set"))
    assert read_all(f"{tmp_path}/set:test") == ([], [])
    assert len(read_all(tmp_path / "set")[0]) == 1


def test_a_file_of_another_set_is_refused(tmp_path: Path) -> None:
    save(datasets.Dataset.from_list([TEXT] * 4), tmp_path / "own", num_shards=2)
    save(datasets.Dataset.from_list([{"title": "t"}] * 4), tmp_path / "other", num_shards=2)
    name = "data-00001-of-00002.arrow"
    (tmp_path / "own" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(InputError, match="own: cannot be read"):
        read_all(tmp_path / "own")
