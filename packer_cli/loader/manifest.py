"""Read and check `hbpack.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packer_cli import __version__
from packer_cli.errors import FormatError
from packer_cli.loader.storage import Storage

FORMAT_NAME = "hbpack"
FORMAT_VERSION = 1

REQUIRED_KEYS = ("fingerprint", "seed", "num_gpus", "groups", "epochs")


def read_manifest(path: Path | str, storage: Storage) -> dict[str, Any]:
    """The manifest of the packed set in a folder, or at a URL.

    Raises FormatError where there is none, or one that this release cannot read.
    """
    file = storage.name("hbpack.json")
    if not storage.is_remote and not Path(path).is_dir():
        raise FormatError(f"{str(path)!r} is not a folder: name the OUT folder that hbpack pack wrote")
    try:
        text = storage.read("hbpack.json").to_pybytes()
    except FileNotFoundError:
        raise FormatError(
            f"{str(path)!r} holds no hbpack.json, so it is no packed set or an unfinished one; run hbpack pack (again)"
        ) from None
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{str(file)!r} is not JSON ({error}); run hbpack pack again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT_NAME:
        raise FormatError(f'{str(file)!r} is not the manifest of a packed set (no "format": "hbpack")')
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{str(file)!r} has format version {version!r}; hbpack {__version__} reads version {FORMAT_VERSION}: "
            "read it with the release that wrote it, or run hbpack pack again"
        )
    missing = [key for key in REQUIRED_KEYS if key not in manifest]
    if missing:
        raise FormatError(f"{str(file)!r} lacks {', '.join(missing)}; run hbpack pack again")
    if not manifest["epochs"]:
        raise FormatError(f"{str(file)!r} lists no epochs; run hbpack pack again")
    return manifest


def find_epoch(manifest: dict[str, Any], epoch: int) -> tuple[dict[str, Any], bool]:
    """The entry of `epochs` that holds an epoch, and whether it was written: else its steps come in another order.

    Raises:
        ValueError: the epoch was over when the set was dealt to other GPUs.
        FormatError: the set holds no whole epoch.
    """
    first, entries = manifest.get("first_epoch", 0), manifest["epochs"]
    if epoch < first:
        raise ValueError(
            f"epoch is {epoch}: it was over when the set was dealt to {manifest['num_gpus']} GPUs; "
            f"the first is {first}"
        )
    if epoch - first < len(entries):
        return entries[epoch - first], True
    for entry in entries:
        if not entry.get("first_step", 0):
            return entry, False
    raise FormatError("hbpack.json lists no whole epoch to repeat; run hbpack rebalance or hbpack write again")


def choose_pad_token(manifest: dict[str, Any], pad_token_id: int | None) -> int:
    """`pad_token_id`, else the tokenizer's pad token, else its end-of-text token, else 0."""
    tokenizer = manifest.get("tokenizer") or {}
    for token in (pad_token_id, tokenizer.get("pad_token_id"), tokenizer.get("eos_token_id")):
        if token is not None:
            return int(token)
    return 0
