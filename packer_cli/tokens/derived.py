"""The exports and other sets that hold tokens of a token store: `derived.jsonl` in the folder of its set.

An exclusion does not reach them, so they are named until they are made again or removed. No fingerprint covers the
file. It has a line for each target: the time, the kind (`set`, `push` or a format of exports), the path or URL, and
the fingerprints of the store and of its excluded records then.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from packer_cli.engine.progress import say
from packer_cli.errors import HbpackError
from packer_cli.files import write_text
from packer_cli.remote.path import as_path, is_remote
from packer_cli.tokens.exclusions import digest_of, remembered
from packer_cli.tokens.index import StoreIndex

DERIVED_NAME = "derived.jsonl"
HUB = "https://huggingface.co/datasets/"
_MOST_NAMED = 8


def note_derived(store: Path, index: StoreIndex, kind: str, target: Path | str) -> None:
    """Note an export or a set that gets tokens of a store; where nothing can be written, say so.

    Args:
        index: of the store, as it was when they were planned.
        target: its folder, or its URL on the Hub.
    """
    root = store.parent
    path = str(target) if isinstance(target, str) or is_remote(target) else os.path.abspath(target)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    own = {"kind": kind, "path": path, "store": index.fingerprint, "excluded": index.excluded}
    try:
        if not root.is_dir():
            return
        lines = _read(root)
        if any(own.items() <= line.items() for line in lines):
            return
        lines = [*(line for line in lines if line["path"] != path), {"time": now, **own}]
        write_text(root / DERIVED_NAME, "".join(json.dumps(line) + "\n" for line in lines))
    except (OSError, HbpackError) as error:
        say(f"{str(root / DERIVED_NAME)!r} cannot be written ({error}): no later exclusion will name {path}")


def say_derived(root: Path) -> None:
    """Name the exports and sets of a store's set that were made without its last exclusion, if there are any."""
    excluded = digest_of(remembered(root))
    held = [line["path"] for line in _read(root) if line["excluded"] != excluded and _is_there(line["path"])]
    if held:
        names = ", ".join(held[:_MOST_NAMED])
        what = f"{len(held):,} of the exports and sets made from {str(root)!r} may still hold excluded records"
        say(f"{what}: {names}; make them again, or remove them", holding=held)


def _read(root: Path) -> list[dict[str, Any]]:
    try:
        lines = [*map(json.loads, (root / DERIVED_NAME).read_bytes().splitlines())]
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return []
    return [line for line in lines if isinstance(line, dict) and {"path", "excluded"} <= line.keys()]


def _is_there(path: str) -> bool:
    """Whether a target still exists, as far as this machine can tell."""
    try:
        return path.startswith(HUB) or as_path(path).exists()
    except (OSError, HbpackError):
        return True
