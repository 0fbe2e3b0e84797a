"""Read and check `hbpack.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packer_cli import __version__
from packer_cli.errors import FormatError

FORMAT_NAME = "hbpack"
FORMAT_VERSION = 1

REQUIRED_KEYS = ("fingerprint", "seed", "num_gpus", "groups", "epochs")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the packed set in folder `path`.

    Raises FormatError where there is none, or one that this release cannot read.
    """
    file = path / "hbpack.json"
    if not path.is_dir():
        raise FormatError(f"{str(path)!r} is not a folder: name the OUT folder that hbpack pack wrote")
    try:
        text = file.read_bytes()
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


def choose_pad_token(manifest: dict[str, Any], pad_token_id: int | None) -> int:
    """`pad_token_id`, else the tokenizer's pad token, else its end-of-text token, else 0."""
    tokenizer = manifest.get("tokenizer") or {}
    for token in (pad_token_id, tokenizer.get("pad_token_id"), tokenizer.get("eos_token_id")):
        if token is not None:
            return int(token)
    return 0
