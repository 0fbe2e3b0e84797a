"""The files that a tokenizer is read from: one list for loading and for the fingerprint."""

from __future__ import annotations

import os
from pathlib import Path

from packer_cli.errors import TokenizerError

TEMPLATE_FOLDER = "additional_chat_templates"
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
SIBLINGS = (*_SETTINGS, "config.json", TEMPLATE_FOLDER)
"""Files used together with a tokenizer.json, whatever that one's name."""

NAMES = (
    "tokenizer.json",
    *_SETTINGS,
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "config.json",
    "generation_config.json",
    # Files that transformers' classes of single models read.
    *("vocab.txt", "dict.txt", "bpe.codes", "tekken.json", "normalizer.json", "byte_maps.json", "emoji.json"),
    *("entity_vocab.json", "target_vocab.json", "vocab-src.json", "vocab-tgt.json"),
    *("word_shape.json", "word_pronunciation.json", "source.spm", "target.spm", "prophetnet.tokenizer"),
)
_PATTERNS = ("*.model", "tokenizer.model.*", "tokenizer.*.json", "config.*.json", f"{TEMPLATE_FOLDER}/*.jinja")


def locate(name: str) -> Path | None:
    """Find the folder or file at a tokenizer's path; None if it does not exist."""
    path = os.path.expanduser(name)
    return Path(path) if os.path.isdir(path) or os.path.isfile(path) else None


def refuse_code(error: Exception, shown: str) -> str:
    """Raise TokenizerError if transformers would need a tokenizer's own code to load it; else give its text."""
    if "trust_remote_code" in str(error):
        raise TokenizerError(
            f"{shown}: its config names Python code to load it with (auto_map), but hbpack never runs a tokenizer's "
            "code; remove auto_map from a copy of the folder to use its tokenizer.json as it is"
        ) from None
    return " ".join(str(error).split()) or type(error).__name__


def template_file(name: str) -> str | None:
    """Name of the file with the chat template, for a tokenizer that has one; None for a Hub name."""
    where = locate(name)
    folder = where if where is None or where.is_dir() else where.parent
    names = ("chat_template.jinja", "tokenizer_config.json")
    return next((name for name in names if folder and (folder / name).is_file()), None)


def files_of(where: Path) -> list[Path]:
    """List all files that loading a folder or a file may read, without weights and data, which may be beside them."""
    folder = where if where.is_dir() else where.parent
    named = [folder / name for name in NAMES]
    found = [path for pattern in _PATTERNS for path in sorted(folder.glob(pattern))]
    return [path for path in dict.fromkeys([*named, *found, where]) if path.is_file()]
