"""Which files a tokenizer is read from, and the fingerprint of what they hold: one list for loading and for reuse."""

from __future__ import annotations

import os
from pathlib import Path

from packer_cli.errors import TokenizerError
from packer_cli.files import fingerprint
from packer_cli.format.checksums import file_checksum

TEMPLATE_FOLDER = "additional_chat_templates"
SIBLINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    TEMPLATE_FOLDER,
)
"""What goes with a tokenizer.json under any name."""

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "config.json",
    # What classes of single models read, in transformers.
    *("vocab.txt", "dict.txt", "bpe.codes", "tekken.json", "normalizer.json", "byte_maps.json", "emoji.json"),
    *("entity_vocab.json", "target_vocab.json", "vocab-src.json", "vocab-tgt.json"),
    *("word_shape.json", "word_pronunciation.json", "source.spm", "target.spm", "prophetnet.tokenizer"),
)
_PATTERNS = ("*.model", "tokenizer.model.*", "tokenizer.*.json", "config.*.json", f"{TEMPLATE_FOLDER}/*.jinja")


def locate(name: str) -> Path | None:
    """The folder or file that a tokenizer's name is the path of; None where there is none."""
    path = os.path.expanduser(name)
    return Path(path) if os.path.isdir(path) or os.path.isfile(path) else None


def models_in(folder: Path) -> list[Path]:
    """SentencePiece models of a folder; the first is loaded where there is no tokenizer.json."""
    return sorted(folder.glob("*.model"))


def refused_code(error: Exception, shown: str) -> TokenizerError | None:
    """What to raise where transformers would load a tokenizer only with the code that comes with it."""
    if "trust_remote_code" not in str(error):
        return None
    return TokenizerError(
        f"{shown}: its config names Python code to load it with (auto_map), and hbpack never runs the code of a "
        "tokenizer; remove auto_map from a copy of the folder to use its tokenizer.json as it is"
    )


def template_file(name: str) -> str | None:
    """The file that a tokenizer's own chat template stands in, where a tokenizer with one is a folder or a file."""
    where = locate(name)
    folder = where if where is None or where.is_dir() else where.parent
    names = ("chat_template.jinja", "tokenizer_config.json")
    return next((name for name in names if folder and (folder / name).is_file()), None)


def files_of(where: Path) -> list[Path]:
    """All files that loading a folder or a file may read. Never weights or data, which may lie beside them."""
    folder = where if where.is_dir() else where.parent
    named = [folder / name for name in NAMES]
    found = [path for pattern in _PATTERNS for path in sorted(folder.glob(pattern))]
    return [path for path in dict.fromkeys([*named, *found, where]) if path.is_file()]


def tokenizer_fingerprint(name: str) -> str:
    """Of the content of a tokenizer's files, so that reuse can be decided without loading it.

    What the Hub's cache does not hold yet is loaded, so that this run and the next see the same files.

    Raises: TokenizerError, where the Hub is asked and has none.
    """
    where = locate(name)
    if where is not None:
        # A file may be read in another way than its folder is: vocab.json, where a tokenizer.json is beside it.
        own = [] if where.is_dir() or where.name == "tokenizer.json" else [where.name]
        return fingerprint(_contents(where), *own)
    from packer_cli.tokens.tokenizer.files import load_hf
    from packer_cli.tokens.tokenizer.hub import cached_snapshot

    snapshot = cached_snapshot(name)
    if snapshot is None:
        load_hf(name)
        snapshot = cached_snapshot(name)
    return fingerprint("hub", name, _contents(snapshot) if snapshot else [])


def _contents(where: Path) -> list[tuple[str, str]]:
    folder = where if where.is_dir() else where.parent
    return [(path.relative_to(folder).as_posix(), file_checksum(path)) for path in files_of(where)]
