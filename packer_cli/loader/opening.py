"""Opens the storage of a packed set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packer_cli.loader.remote import RemoteStorage
from packer_cli.loader.storage import LocalStorage, Storage, Verify
from packer_cli.remote.local import default_cache_dir
from packer_cli.remote.system import is_url


def open_storage(
    path: str | os.PathLike[str],
    *,
    verify: Verify,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int,
    storage_options: dict[str, Any] | None,
) -> Storage:
    """The storage of a folder or URL; the arguments are those of `PackedDataset`."""
    if not is_url(path):
        return LocalStorage(Path(path), verify)
    folder = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    return RemoteStorage(str(path).rstrip("/"), folder, cache_bytes, verify, storage_options or {})
