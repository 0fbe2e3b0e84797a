"""Opens a packed set: its storage, and its `hbpack.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.constants import MANIFEST_NAME
from packer_cli.format.manifest import Manifest, parse_manifest
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


def read_manifest(path: Path | str, storage: Storage) -> Manifest:
    """The manifest of the packed set in a folder, or at a URL.

    Raises:
        FormatError: there is none, it is damaged, or this release cannot read it.
    """
    file = storage.name(MANIFEST_NAME)
    if not storage.is_remote and not Path(path).is_dir():
        raise FormatError(f"{str(path)!r} is not a folder: name the OUT folder that hbpack pack wrote")
    try:
        data = storage.read(MANIFEST_NAME).to_pybytes()
    except FileNotFoundError:
        raise FormatError(
            f"{str(path)!r} holds no hbpack.json, so it is not a packed set, or not a finished one; run hbpack pack"
        ) from None
    except OSError as error:
        raise FormatError(f"{str(file)!r} cannot be read ({error.strerror or error}); {storage.remedy}") from None
    return parse_manifest(data, str(file), storage.remedy, compares=storage.verify != "none")


def choose_pad_token(manifest: Manifest, pad_token_id: int | None) -> int:
    """`pad_token_id`, else the tokenizer's pad token, else its end-of-text token, else 0.

    Raises:
        ConfigError: the vocabulary has no such id.
    """
    tokenizer = manifest.tokenizer
    size = tokenizer.get("vocab_size")
    for token in (pad_token_id, tokenizer.get("pad_token_id"), tokenizer.get("eos_token_id")):
        if token is None:
            continue
        if token < 0 or (size is not None and token >= size):
            rule = "not be negative" if size is None else f"be in the tokenizer's vocabulary, 0 to {size - 1}"
            raise ConfigError(f"pad_token_id is {token}: it must {rule}; give another pad_token_id")
        return int(token)
    return 0
