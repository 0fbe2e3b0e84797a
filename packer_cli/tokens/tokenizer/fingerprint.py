"""The fingerprint of what a tokenizer's files hold: whether tokens can be used again."""

from __future__ import annotations

from pathlib import Path

from packer_cli.files import fingerprint
from packer_cli.format.checksums import file_checksum
from packer_cli.tokens.tokenizer.files import load_hf
from packer_cli.tokens.tokenizer.hub import cached_snapshot
from packer_cli.tokens.tokenizer.reads import files_of, locate


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
    snapshot = cached_snapshot(name)
    if snapshot is None:
        load_hf(name)
        snapshot = cached_snapshot(name)
    return fingerprint("hub", name, _contents(snapshot) if snapshot else [])


def _contents(where: Path) -> list[tuple[str, str]]:
    folder = where if where.is_dir() else where.parent
    return [(path.relative_to(folder).as_posix(), file_checksum(path)) for path in files_of(where)]
