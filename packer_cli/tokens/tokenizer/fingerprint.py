"""The fingerprint of a tokenizer's files, which decides whether tokens can be reused."""

from __future__ import annotations

from pathlib import Path

from packer_cli.files import fingerprint
from packer_cli.format.checksums import file_checksum
from packer_cli.tokens.tokenizer.files import load_hf
from packer_cli.tokens.tokenizer.hub import cached_snapshot
from packer_cli.tokens.tokenizer.reads import files_of, locate


def tokenizer_fingerprint(name: str) -> str:
    """Fingerprint of the contents of a tokenizer's files, found without loading the tokenizer.

    Files missing from the Hub's cache are downloaded, so that this run and the next see the same files.

    Raises:
        TokenizerError: the name is not a path, and the Hub has no such tokenizer.
    """
    where = locate(name)
    if where is not None:
        # A file may be loaded differently from its folder, such as a vocab.json beside a tokenizer.json.
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
