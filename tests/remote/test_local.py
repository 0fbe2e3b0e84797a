"""This node's copies of remote files."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

from packer_cli.remote import local
from packer_cli.remote.path import RemotePath


def test_a_damaged_copy_is_fetched_again(bucket: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a process; the one that has fetched it, or has compared it, trusts it."""
    data = bytes(range(256)) * 4
    xxh3 = xxhash.xxh3_128_hexdigest(data)
    (bucket / "part").write_bytes(data)
    monkeypatch.setattr(local, "_compared", set())
    copy = local.local_file(bucket / "part", len(data), xxh3)
    assert copy.is_relative_to(tmp_path / "cache")
    assert copy.read_bytes() == data
    copy.write_bytes(data[::-1])
    monkeypatch.setattr(local, "_compared", set())
    assert local.map_file(bucket / "part", len(data), xxh3).read() == data
    (bucket / "part").unlink()  # From here on nothing can be fetched.
    assert local.local_file(bucket / "part", len(data), xxh3).read_bytes() == data
    copy.write_bytes(data[::-1])
    monkeypatch.setattr(local, "_compared", set())
    with pytest.raises(FileNotFoundError):
        local.local_file(bucket / "part", len(data), xxh3)
