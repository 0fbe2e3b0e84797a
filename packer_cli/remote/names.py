"""Names that the user or a file gives paths, and the paths: a `Path`, or for a URL a `RemotePath`."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import cast

from packer_cli.errors import InputError, RemoteError
from packer_cli.remote.path import RemotePath, is_remote
from packer_cli.remote.system import is_url, open_system


def as_path(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder that the user named: a `Path`, or for a URL a `RemotePath`, used alike.

    Raises:
        InputError: there is no such kind of storage, or what reads it is not installed.
    """
    text = os.fspath(name)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    if not is_url(text):
        return Path(text)
    try:
        open_system(text, {})
    except (ImportError, RemoteError) as error:
        raise InputError(str(error)) from None
    return cast("Path", RemotePath(text))


def path_from(folder: Path, text: str) -> Path:
    """Return the path that a file in a folder gives as `relative_path` made it."""
    if is_url(text):
        return as_path(text)
    if is_remote(folder):
        return Path(text) if text.startswith("/") else folder / text
    return Path(os.path.normpath(folder / text))


def relative_path(path: Path, folder: Path) -> str:
    """Return the text with which files in `folder` name another path: relative if possible, so that both can move."""
    if not is_remote(path) and not is_remote(folder):
        return os.path.relpath(path, folder)
    (scheme, _, ours), (other, _, theirs) = (str(each).partition("://") for each in (path, folder))
    if scheme == other and ours.split("/")[0] == theirs.split("/")[0]:
        return posixpath.relpath(f"/{ours}", f"/{theirs}")
    return str(path) if is_remote(path) else str(path.absolute())


def paths_below(folder: Path) -> set[Path]:
    """Return a folder that exists and everything in it; only the objects of a remote one."""
    if isinstance(folder, RemotePath):
        return {folder / name for name in folder.find()}
    return {path for path in (folder, *folder.rglob("*")) if path.exists()}
