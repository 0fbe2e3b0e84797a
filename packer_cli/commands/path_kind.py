"""What lies at a path that the user named. Every command asks here, and says in its own words what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from packer_cli.corpus.data_files import COMPRESSIONS, FORMATS
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.tokens.index import INDEX_NAME, TOKENS


class Found(NamedTuple):
    """What lies at a path. A folder may hold a plan and a token store."""

    path: Path
    """The folder, where the plan or the manifest in it is named."""
    kind: Literal["nothing", "folder", "corpus", "lengths"]
    """Of a file, what its name says: text may be lengths, and so may an array (.npy)."""
    has_plan: bool = False
    store: Path | None = None
    """The token store: the folder itself, or the one in it."""


def look_at(path: Path) -> Found:
    """Price: a few requests, of remote storage; nothing is opened."""
    if path.name in (PLAN_NAME, MANIFEST_NAME) and path.is_file():
        path = path.parent
    if path.is_file():
        is_text = FORMATS.get(path.suffix, "text") == "text" and path.suffix not in COMPRESSIONS
        return Found(path, "lengths" if is_text or path.suffix == ".npy" else "corpus")
    if not path.exists():
        return Found(path, "nothing")
    store = next((folder for folder in (path, path / TOKENS) if (folder / INDEX_NAME).exists()), None)
    return Found(path, "folder", (path / PLAN_NAME).exists(), store)
