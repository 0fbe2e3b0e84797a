"""The loader gives every branch of the token store once an epoch, as a tree and flat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packer_cli.errors import ConfigError
from packer_cli.loader import FORMATS, PackedDataset, metadata_of
from tests.items.conftest import hbpack, write_pairs
from tests.reference import store_parts


def branches_of(folder: Path) -> list[tuple[list[int], set[int]]]:
    """Tokens and the places of the loss of each branch of a token store, in plain Python."""
    found = []
    for file in store_parts(folder):
        for item in pa.ipc.open_file(file.read_bytes()).read_all().to_pylist():
            spans = iter(zip(item["loss_starts"], item["loss_stops"], strict=True))
            for segment, number in zip(item["branch_segments"], item["branch_loss_spans"], strict=True):
                path: list[int] = []
                while segment >= 0:
                    begin, end = item["segment_starts"][segment : segment + 2]
                    path = item["input_ids"][begin:end] + path
                    segment = item["segment_parents"][segment]
                found.append((path, {place for _ in range(number) for place in range(*next(spans))}))
    return found


@pytest.fixture(scope="module")
def pairs(words: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of pairs alone."""
    folder = tmp_path_factory.mktemp("pairs")
    done = hbpack("pack", write_pairs(folder / "pairs.jsonl", 2, 30), *words, "--output", folder / "out")
    assert done.code == 0, done.stderr
    return folder / "out"


def read(folder: Path, format: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(keys, metadata) of all batches that are not sliced, of all replicas, without fillers."""
    batches = []
    for rank in range(4):
        for batch in PackedDataset(folder, rank, 4, format=format, sp_slice=False):
            found = metadata_of(batch)
            if found["pack_id"] >= 0 and found["sp_rank"] == 0:
                batches.append((batch, found))
    return batches


def test_every_branch_of_the_store_is_in_a_tree_once(packed: Path) -> None:
    expected, seen = branches_of(packed), set()
    for batch, found in read(packed, "tree"):
        ids, starts = batch["input_ids"][0].tolist(), found["segment_starts"].tolist()
        parents, trained = found["segment_parents"].tolist(), [set() for _ in found["sample_ids"]]  # type: ignore[var-annotated]
        for token, branch in zip(found["token_index"].tolist(), found["segment_id"].tolist(), strict=True):
            trained[branch].add(int(batch["position_ids"][0, token]) + 1)
            assert batch["shift_labels"][0, token] == ids[token + 1]
        for branch, (number, segment) in enumerate(
            zip(found["sample_ids"].tolist(), found["branch_segments"].tolist(), strict=True)
        ):
            path: list[int] = []
            while segment >= 0:
                path = ids[starts[segment] : starts[segment + 1]] + path
                segment = parents[segment]
            whole, loss = expected[number]
            assert path == whole[: len(path)]  # The longest were truncated.
            assert trained[branch] == {place for place in loss if place < len(path)}
            assert number not in seen
            seen.add(number)
    assert seen == set(range(len(expected)))


def test_pairs_are_flat_with_all_chosen_first(pairs: Path) -> None:
    expected, seen = branches_of(pairs), []
    for batch, found in read(pairs, "pairs"):
        borders, numbers = batch["cu_seq_lens_q"].tolist(), found["sample_ids"].tolist()
        half = len(numbers) // 2
        assert [number + 1 for number in numbers[:half]] == numbers[half:]
        assert found["most_items"] >= half
        for begin, end, number in zip(borders, borders[1:], numbers, strict=False):
            assert batch["input_ids"][0, begin:end].tolist() == expected[number][0]
        seen += numbers
    assert sorted(seen) == [*range(len(expected))]


def test_other_formats_refuse_trees(packed: Path) -> None:
    flat = {*FORMATS} - {"tree", "tree-flex", "pairs"}
    assert len(flat) > 5
    for name in flat:
        with pytest.raises(ConfigError, match="share prefixes"):
            PackedDataset(packed, 0, 4, format=name)
