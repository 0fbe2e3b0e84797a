"""The files of a packed set, here or behind a URL; what goes wrong becomes an error that names file and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from packer_cli.errors import FormatError
from packer_cli.format.checksums import check_bytes, inside, require_damage
from packer_cli.remote.local import open_source
from packer_cli.remote.names import path_from
from packer_cli.remote.path import is_remote


class SetFolder:
    """The files of the packed set in a folder, by their paths there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def remedy(self) -> str:
        """The remedy for a damaged file."""
        return "copy the set again" if is_remote(self.root) else "run hbpack write, which rewrites damaged files"

    def name(self, path: str) -> str:
        """Make a file's full name, for messages."""
        return str(path_from(self.root, path))

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Turn all that goes wrong while a file is read into an error that names the file and the remedy.

        Raises:
            FormatError: it is missing or damaged.
            RemoteError: it cannot be fetched.
        """
        try:
            yield
        except (FormatError, OSError, pa.ArrowException, KeyError, IndexError, ValueError) as error:
            require_damage(error)
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise FormatError(f"{self.name(path)!r} is missing or damaged ({reason}); {self.remedy}") from None

    def read(self, path: str, xxh3: str | None = None) -> pa.Buffer:
        """Read a file whole. Raises OSError, or ValueError, also if it has another checksum."""
        with open_source(inside(self.root, path)) as source:
            data = source.read_buffer()
        if xxh3 is not None and (why := check_bytes(data, xxh3)):
            raise ValueError(why)
        return data

    def source(self, path: str) -> pa.NativeFile:
        """Open a file for pyarrow; ranges of a remote one are read. Raises OSError."""
        return open_source(path_from(self.root, path))
