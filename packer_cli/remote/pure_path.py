"""The name of an object or folder behind a URL: what `pathlib.PurePath` is to a `Path`."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Self


@dataclass(frozen=True, order=True, init=False)
class PureRemotePath:
    """A path that is only a name; requests nothing."""

    url: str
    options: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Of the file system."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        scheme, _, path = url.partition("://")
        object.__setattr__(self, "url", f"{scheme}://{path.rstrip('/') or path}")
        object.__setattr__(self, "options", options or {})

    def __hash__(self) -> int:
        return hash(self.url)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str | os.PathLike[str]) -> Self:
        """A path below; `..` climbs."""
        scheme, _, path = self.url.partition("://")
        return type(self)(f"{scheme}://{_join(path, os.fspath(name))}", self.options)

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self.url)

    @property
    def suffix(self) -> str:
        """The last part's suffix."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Self:
        """The folder."""
        return self / ".."

    @property
    def parents(self) -> list[Self]:
        """The folders, up to the bucket."""
        found = [self.parent]
        while found[-1] != found[-1].parent:
            found.append(found[-1].parent)
        return found

    def with_name(self, name: str) -> Self:
        """The same folder, another last part."""
        return self.parent / name

    def relative_to(self, folder: PureRemotePath) -> PurePosixPath:
        """The path below a folder."""
        return PurePosixPath(self.url).relative_to(PurePosixPath(folder.url))

    def resolve(self) -> Self:
        """Itself: there are no links."""
        return self


def _join(path: str, name: str) -> str:
    parts = path.split("/")
    for part in name.split("/"):
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join(parts)
