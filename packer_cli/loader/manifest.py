"""Read and check `hbpack.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packer_cli import __version__
from packer_cli.errors import ConfigError, FormatError
from packer_cli.format import epochs
from packer_cli.format.checksums import check_json, check_path, is_checksum
from packer_cli.format.constants import FORMAT_NAME, FORMAT_VERSION, MANIFEST_NAME
from packer_cli.loader.storage import Storage

_SHARD = {"path": "path", "first_pack": int, "num_packs": int, "num_bytes": int, "xxh3": "checksum"}
_GROUP = {"capacity": int, "sp_size": int, "shards": [_SHARD]}
_EPOCH = {"path": "path", "num_iterations": int, "num_steps": int, "rank_xxh3": ["checksum"], "first_step?": int}
_GENERATION = {"fingerprint": str, "num_gpus": int, "first_epoch": int, "epochs": [_EPOCH]}
_MANIFEST = {
    "fingerprint": str,
    "seed": int,
    "num_gpus": int,
    "groups": [_GROUP],
    "epochs": [_EPOCH],
    "first_epoch?": int,
    "history?": [_GENERATION],
    "origin?": {"fingerprint": str, "epoch": int, "step": int, "iteration": int},
    "tokenizer?": {"vocab_size?": int, "pad_token_id?": int, "eos_token_id?": int},
}
"""What the loader needs, of which type; `?`: may be left out or null."""


def read_manifest(path: Path | str, storage: Storage) -> dict[str, Any]:
    """The manifest of the packed set in a folder, or at a URL.

    Raises FormatError where there is none, or one that is damaged, or that this release cannot read.
    """
    file = storage.name(MANIFEST_NAME)
    if not storage.is_remote and not Path(path).is_dir():
        raise FormatError(f"{str(path)!r} is not a folder: name the OUT folder that hbpack pack wrote")
    try:
        text = storage.read(MANIFEST_NAME).to_pybytes()
    except FileNotFoundError:
        raise FormatError(
            f"{str(path)!r} holds no hbpack.json, so it is not a packed set, or not a finished one; "
            "run hbpack pack (again)"
        ) from None
    except OSError as error:
        raise FormatError(f"{str(file)!r} cannot be read ({error.strerror or error}); {storage.remedy}") from None
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{str(file)!r} is not JSON ({error}); {storage.remedy}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT_NAME:
        raise FormatError(f'{str(file)!r} is not the manifest of a packed set (no "format": "hbpack")')
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{str(file)!r} has format version {version!r}; hbpack {__version__} reads version {FORMAT_VERSION}: "
            "read it with the release that wrote it, or run hbpack pack again"
        )
    try:
        if storage.verify != "none":
            check_json(text)
        _check(manifest, _MANIFEST, "")
        _check_counts(manifest)
    except ValueError as error:
        raise FormatError(f"{str(file)!r} is damaged ({error}); {storage.remedy}") from None
    return manifest


def _check(value: Any, rule: Any, name: str) -> None:
    """Raise ValueError, which names the place, where a value is not as a rule of `_MANIFEST` says."""
    if isinstance(rule, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {_shown(value)}, not an object")
        for key, of_key in rule.items():
            place = f"{name}.{key}".strip(".?")
            if key.endswith("?"):
                if value.get(key[:-1]) is not None:
                    _check(value[key[:-1]], of_key, place)
            elif key not in value:
                raise ValueError(f"it lacks {place}")
            else:
                _check(value[key], of_key, place)
    elif isinstance(rule, list):
        if not isinstance(value, list):
            raise ValueError(f"{name} is {_shown(value)}, not a list")
        for i, item in enumerate(value):
            _check(item, rule[0], f"{name}[{i}]")
    elif rule is int:
        if type(value) is not int:
            raise ValueError(f"{name} is {_shown(value)}, not an integer")
    elif not isinstance(value, str):
        raise ValueError(f"{name} is {_shown(value)}, not text")
    elif rule == "path":
        check_path(value)
    elif rule == "checksum" and not is_checksum(value):
        raise ValueError(f"{name} is {_shown(value)}, not an xxh3-128 in hex")


def _check_counts(manifest: dict[str, Any]) -> None:
    if not manifest["epochs"]:
        raise ValueError("it lists no epochs")
    for group in manifest["groups"]:
        if group["capacity"] < 1 or group["sp_size"] < 1:
            raise ValueError("a group has no capacity or no degree")
    for epoch in manifest["epochs"]:
        if len(epoch["rank_xxh3"]) != manifest["num_gpus"]:
            raise ValueError(f"{epoch['path']} has {len(epoch['rank_xxh3'])} ranks, not {manifest['num_gpus']}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def planned_fingerprint(manifest: dict[str, Any]) -> str:
    """The fingerprint in the identity of the shards: the set's, as it was planned first."""
    history = manifest.get("history")
    fingerprint: str = (history[0] if history else manifest)["fingerprint"]
    return fingerprint


def find_epoch(manifest: dict[str, Any], epoch: int) -> tuple[dict[str, Any], bool]:
    """The entry of `epochs` that an epoch is or repeats, and whether it is that one. Raises ConfigError: no such."""
    entries = manifest["epochs"]
    first_steps = [entry.get("first_step") or 0 for entry in entries]
    number, is_written = epochs.find_epoch(epoch, manifest.get("first_epoch") or 0, first_steps, manifest["num_gpus"])
    return entries[number], is_written


def choose_pad_token(manifest: dict[str, Any], pad_token_id: int | None) -> int:
    """`pad_token_id`, else the tokenizer's pad token, else its end-of-text token, else 0.

    Raises:
        ConfigError: the vocabulary has no such id.
    """
    tokenizer = manifest.get("tokenizer") or {}
    size = tokenizer.get("vocab_size")
    for token in (pad_token_id, tokenizer.get("pad_token_id"), tokenizer.get("eos_token_id")):
        if token is None:
            continue
        if token < 0 or (size is not None and token >= size):
            rule = "not be negative" if size is None else f"be in the tokenizer's vocabulary, 0 to {size - 1}"
            raise ConfigError(f"pad_token_id is {token}: it must {rule}; give another pad_token_id")
        return int(token)
    return 0
