"""Copies of tokenizers behind URLs, for the libraries that load them from paths alone."""

from __future__ import annotations

import functools
from pathlib import Path

from packer_cli.files import atomic_file, fingerprint
from packer_cli.remote.local import default_cache_dir
from packer_cli.remote.path import RemotePath, as_path, version_of


@functools.cache
def copy_of(url: str, names: tuple[str, ...], patterns: tuple[str, ...]) -> Path:
    """Return this node's copy of a tokenizer's folder or file, made once for each version of its files, if any.

    A process asks for the version once.

    Args:
        names, patterns: names and globs of the files that belong to a tokenizer.
    """
    path = as_path(url)
    if not isinstance(path, RemotePath):
        return path
    folder = path if path.is_dir() else path.parent
    found = {each for each in folder.iterdir() if each.name in (*names, path.name)}
    found |= {each for pattern in patterns for each in folder.glob(pattern)}
    versions = sorted((str(each.relative_to(folder)), version_of(each.info())) for each in found)
    copy = default_cache_dir() / ".tokenizers" / fingerprint(str(folder), versions)
    for name, _ in versions:
        if not (copy / name).exists():
            with atomic_file(copy / name) as file:
                file.write((folder / name).read_bytes())
    return copy if folder == path else copy / path.name
