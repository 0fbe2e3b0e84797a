"""Helpers of the tests of damage: the report of `hbpack verify`, and files to harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.damage.conftest import hbpack
from tests.reference import home

RANK = "ranks/epoch-000/rank-00000.arrow"


def verify(folder: Path, *options: str) -> dict[str, Any]:
    done = hbpack("verify", folder, "--json", *options)
    value = json.loads(done.stdout)
    assert done.code == int(not value["sound"])
    return value


def damaged(folder: Path, *options: str) -> dict[str, str]:
    return {damage["file"]: damage["what"] for damage in verify(folder, *options)["damaged"]}


def shard_of(folder: Path, number: int = 0) -> str:
    own = home(folder)
    return sorted(own.glob("shards/*/*.arrow"))[number].relative_to(own).as_posix()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
