"""Sets for more ranks than rank manifests: each file holds the rows of several, and a loader reads its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import packer_cli as hbpack
from packer_cli.errors import FormatError
from packer_cli.format.manifest import SetFolder
from packer_cli.format.ranks import read_rank_rows
from packer_cli.loader import PackedDataset
from packer_cli.remote.path import RemotePath
from packer_cli.shards import ranks
from packer_cli.shards.manifest import read_manifest
from tests.reference import home
from tests.s3_server import s3_server

GPUS, MOST, ROWS = 12, 4, 40


@pytest.fixture(scope="module")
def sets(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A set with a file for each rank, and the same with few files, of several ranks each."""
    sample, folder = repo / "examples" / "sample", tmp_path_factory.mktemp("sets")
    options: dict[str, Any] = {"tokenizer": str(sample / "tokenizer"), "groups": "256,2k:2", "gpus": GPUS, "epochs": 2}
    hbpack.pack(sample / "chats.jsonl", output=folder / "all", lockstep=1, global_tokens="16k", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "MOST_FILES", MOST)
        patch.setattr(ranks, "ROWS_PER_FILE", ROWS)
        hbpack.pack(sample / "chats.jsonl", output=folder / "few", lockstep=1, global_tokens="16k", **options)
    return home(folder / "all"), home(folder / "few")


def test_ranks_read_their_rows_wherever_they_lie(sets: tuple[Path, Path]) -> None:
    every, few = sets
    manifests = [read_manifest(folder) for folder in sets]
    for epoch, of_few in zip(*(manifest.epochs for manifest in manifests), strict=True):
        files = {path: of_few.find_rank(rank) for rank in of_few.first_ranks for path in [of_few.find_rank(rank).path]}
        assert 1 < len(files) <= MOST < len(epoch.ranks)
        assert [*epoch.first_ranks] == [*of_few.first_ranks]
        assert sorted(path.name for path in (few / of_few.path).iterdir()) == sorted(
            path.rsplit("/")[-1] for path in [*files, f"{of_few.path}/iterations.arrow"]
        )
        for path in files:  # Arrow reads them as they are.
            table = pa.ipc.open_file(few / path).read_all()
            assert table.schema.names[0] == "iteration"
            assert table.num_rows > 0
    for rank in range(GPUS):
        for epoch in range(3):  # The last repeats one that was written.
            rows = [read_rank_rows(SetFolder(f), m, rank, epoch) for f, m in zip(sets, manifests, strict=True)]
            for name, values in rows[0].columns.items():
                np.testing.assert_array_equal(values, rows[1].columns[name], err_msg=name)
    for rank in (0, 5, GPUS - 1):
        batches = [[*PackedDataset(folder, rank, GPUS, lockstep=False)] for folder in (every, few)]
        assert str(batches[0]) == str(batches[1])


def test_damage_is_found_by_the_ranks_it_concerns_and_repaired(
    sets: tuple[Path, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ranks, "MOST_FILES", MOST)
    monkeypatch.setattr(ranks, "ROWS_PER_FILE", ROWS)
    out = tmp_path / "out"
    assert hbpack.verify(sets[1].parent).sound
    shutil.copytree(sets[1].parent, out, symlinks=True)
    manifest = read_manifest(home(out))
    file = manifest.epochs[0].ranks[1]
    assert file.batches is not None
    one, other = file.batches.firsts[:2]
    found = manifest.epochs[0].find_rank(one)
    path, (begin, stop) = home(out) / found.path, found.span or (0, 0)
    was = path.read_bytes()
    path.write_bytes(was[: stop - 1] + bytes([was[stop - 1] ^ 1]) + was[stop:])
    assert begin < stop < len(was)
    for verify in ("lazy", "none"):
        with pytest.raises(FormatError, match=f"{path.name}' is damaged .its checksum is"):
            len(PackedDataset(out, one, GPUS, lockstep=False, verify=verify))
        assert len(PackedDataset(out, other, GPUS, lockstep=False, verify=verify))
    assert [damage.file for damage in hbpack.verify(out).damaged] == [found.path]
    hbpack.write(out)
    assert path.read_bytes() == was
    assert hbpack.verify(out).sound


def test_a_rank_of_a_remote_set_is_one_request(sets: tuple[Path, Path]) -> None:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with s3_server() as server:
        options = {"key": "key", "secret": "secret", "endpoint_url": server.url}
        system = fsspec.filesystem("s3", **options)
        system.mkdir("bucket")
        system.put(str(sets[1]), "bucket/out", recursive=True)
        manifest, folder = read_manifest(sets[1]), SetFolder(RemotePath("s3://bucket/out", options))  # type: ignore[arg-type]
        found = manifest.epochs[0].find_rank(7)
        server.requests.clear()
        server.sent.clear()
        data = folder.read(found.path, found.xxh3, found.span)
        assert len(server.requests) == 1
        assert server.requests[0].startswith("GET")
        assert found.span
        assert sum(server.sent.values()) == data.size == found.span[1] - found.span[0]
