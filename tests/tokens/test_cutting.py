"""Which slices share a part, and that nothing of where a record is from is lost by it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.types import CorpusFile, CorpusSlice
from packer_cli.engine.local import LocalEngine
from packer_cli.stages.tokenize import run_tokenize
from packer_cli.tokens.cutting import GROUP_BYTES, GROUP_FILES, group_slices
from packer_cli.tokens.store import TokenStore

MIB = 1 << 20


def slices(*sizes: int, num_slices: int = 1, **fields: str) -> list[CorpusSlice]:
    files = [
        CorpusFile(source_id=0, path=f"{number}", num_bytes=size, **{"format": "jsonl", **fields})
        for number, size in enumerate(sizes)
    ]
    return [CorpusSlice(file=file, start=i, stop=i + 1) for file in files for i in range(num_slices)]


@pytest.mark.parametrize(
    ("cut", "parts"),
    [
        (slices(10, 20, 30), [3]),
        (slices(2 * MIB, 2 * MIB, 1), [2, 1]),
        (slices(GROUP_BYTES, 1), [1, 1]),
        (slices(1, GROUP_BYTES + 1, 1, 1), [1, 1, 2]),
        (slices(1, 1, num_slices=2), [1, 1, 1, 1]),
        (slices(MIB, MIB), [2]),
        (slices(MIB, MIB, compression="gzip"), [1, 1]),
        (slices(MIB // 8, MIB // 8, compression="gzip"), [2]),
        (slices(MIB, MIB, format="parquet"), [1, 1]),
        (slices(*[1] * (GROUP_FILES + 1)), [GROUP_FILES, 1]),
        ([], []),
    ],
)
def test_small_files_that_follow_each_other_share_a_part(cut: list[CorpusSlice], parts: list[int]) -> None:
    grouped = group_slices(cut)
    assert [len(part) for part in grouped] == parts
    assert [slice_ for part in grouped for slice_ in part] == cut


def test_many_files_are_as_one_but_for_their_names(tmp_path: Path, repo: Path) -> None:
    """Samples in the same order; each reject, source and line where it belongs."""
    lines = [json.dumps({"text": f"text {i}"}) if i % 4 else "broken" for i in range(60)]
    (tmp_path / "one.jsonl").write_text("\n".join(lines))
    (tmp_path / "a").mkdir()
    for i in range(0, 60, 3):
        (tmp_path / "a" / f"{i:02}.jsonl").write_text("\n".join(lines[i : i + 3]))
    (tmp_path / "a" / "30.jsonl").write_text("\n")  # Without a record.
    inputs = (str(tmp_path / "one.jsonl"), str(tmp_path / "a"), str(tmp_path / "one.jsonl"))
    config = TokenizeConfig(inputs=inputs, tokenizer=str(repo / "examples" / "sample" / "tokenizer"))
    with LocalEngine(1) as engine:
        index = run_tokenize(config, tmp_path / "out", engine)
    assert [len(part.files) for part in index.parts] == [22]
    store = TokenStore.open(tmp_path / "out" / "tokens")
    assert np.bincount(store.sources()).tolist() == [45, 43, 45]
    one = [(str(tmp_path / "one.jsonl"), i + 1) for i in range(60) if i % 4]
    many = [(str(tmp_path / "a" / f"{i // 3 * 3:02}.jsonl"), i % 3 + 1) for i in range(60) if i % 4 and i // 3 != 10]
    assert list(store.locate(np.arange(len(store)))) == one + many + one
    assert store.sources_of(np.array([0, 44, 45, 87, 88, 132])).tolist() == [0, 0, 1, 1, 2, 2]
    from packer_cli.stages.rejected import write_rejected

    write_rejected(tmp_path, index, tmp_path / "out" / "tokens", [])
    rejected = [json.loads(line) for line in (tmp_path / "rejected.jsonl").open()]
    expected = [(str(tmp_path / "one.jsonl"), i + 1) for i in range(0, 60, 4)]
    of_many = [(str(tmp_path / "a" / f"{i // 3 * 3:02}.jsonl"), i % 3 + 1) for i in range(0, 60, 4) if i // 3 != 10]
    assert [(entry["file"], entry["line"]) for entry in rejected] == expected + of_many + expected
