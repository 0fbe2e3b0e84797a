"""A packed set's files, in a folder or behind a URL, without the loader, which needs torch.

Arrow files are read in place: of a remote shard only its end and one record batch (16 packs) travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from packer_cli.errors import FormatError, InputError, RemoteError
from packer_cli.format.checksums import check_bytes
from packer_cli.format.constants import MANIFEST_NAME
from packer_cli.format.manifest import Manifest, parse_manifest
from packer_cli.shards.manifest import read_manifest


class SetFiles:
    """The files of the packed set in a folder, by their paths there."""

    remedy = "run hbpack write, which rewrites damaged files"

    def __init__(self, root: str) -> None:
        self.root = root

    def name(self, path: str) -> str:
        """A file's full name, for messages."""
        return str(Path(self.root) / path)

    def manifest(self) -> Manifest:
        """`hbpack.json`. Raises InputError where there is none, FormatError where it is damaged."""
        return read_manifest(Path(self.root))

    @contextmanager
    def open(
        self, path: str, columns: list[str] | None = None, *, xxh3: str | None = None
    ) -> Iterator[pa.ipc.RecordBatchFileReader]:
        """An Arrow file, of which only these columns are read; None is all.

        Args:
            xxh3: of the whole file, which then is read and compared first; None: the caller checks what it reads.

        Raises:
            FormatError: it is missing or damaged, also where that shows inside the block.
            RemoteError: it cannot be fetched.
        """
        with self.reading(path), self._source(path) if xxh3 is None else self._checked(path, xxh3) as source:
            reader = pa.ipc.open_file(source)
            if columns is not None:
                numbers = [reader.schema.get_field_index(name) for name in columns]
                if -1 in numbers:
                    raise KeyError(f"no column {columns[numbers.index(-1)]!r}")
                reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=numbers))
            yield reader

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """While a file is read: what goes wrong becomes an error that names the file and the remedy.

        Raises:
            FormatError: it is missing or damaged.
            RemoteError: it cannot be fetched.
        """
        try:
            yield
        except (FormatError, RemoteError):
            raise
        except (OSError, pa.ArrowException, KeyError, IndexError, ValueError) as error:
            raise self._error(path, error) from None

    def buffer(self, path: str) -> pa.Buffer:
        """All of a file; for use inside `reading`."""
        with self._source(path) as source:
            return source.read_buffer()

    def _source(self, path: str) -> pa.NativeFile:
        return pa.memory_map(self.name(path))

    def _checked(self, path: str, xxh3: str) -> pa.NativeFile:
        data = self.buffer(path)
        why = check_bytes(data, xxh3)
        if why is not None:
            raise ValueError(why)
        return pa.BufferReader(data)

    def _error(self, path: str, error: Exception) -> Exception:
        reason = getattr(error, "strerror", None) or str(error)
        return FormatError(
            f"{self.name(path)!r} is missing or damaged ({' '.join(str(reason).split())}); {self.remedy}"
        )

    def read(self, path: str) -> bytes:
        """A small file. Raises OSError."""
        return Path(self.name(path)).read_bytes()


class RemoteFiles(SetFiles):
    """The files below a URL of fsspec."""

    remedy = "copy the set again"

    def __init__(self, root: str) -> None:
        super().__init__(root.rstrip("/"))
        try:
            import fsspec

            self._system, self._path = fsspec.url_to_fs(self.root)
        except (ImportError, ValueError) as error:
            if "s3fs" in str(error):  # fsspec knows nothing of the extra that brings it.
                raise InputError(f"{root!r} needs s3fs: pip install 'hbpack[remote]'") from None
            raise InputError(f"{root!r} cannot be opened: {error}") from None

    def name(self, path: str) -> str:
        """A URL."""
        return f"{self.root}/{path}"

    def manifest(self) -> Manifest:
        """As in a folder; RemoteError where the storage does not answer."""
        try:
            data = self.read(MANIFEST_NAME)
        except FileNotFoundError:
            raise InputError(
                f"{self.root!r} holds no packed data set (no {MANIFEST_NAME}); check the address"
            ) from None
        except Exception as error:  # Every file system has errors of its own.
            raise self._error(MANIFEST_NAME, error) from None
        return parse_manifest(data, self.name(MANIFEST_NAME), self.remedy)

    def _source(self, path: str) -> pa.NativeFile:
        try:
            return pa.PythonFile(self._system.open(f"{self._path}/{path}", "rb"), mode="r")
        except Exception as error:
            raise self._error(path, error) from None

    def _error(self, path: str, error: Exception) -> Exception:
        if isinstance(error, (FileNotFoundError, pa.ArrowInvalid, KeyError, IndexError, ValueError)):
            return super()._error(path, error)
        return RemoteError(
            f"{self.name(path)!r} could not be read ({type(error).__name__}: {error}); check the network, the "
            "credentials and the address"
        )

    def read(self, path: str) -> bytes:
        """A small file, as its file system raises."""
        data: Any = self._system.cat_file(f"{self._path}/{path}")
        return bytes(data)


def open_files(name: str) -> SetFiles:
    """The files of the set in a folder, or at a URL such as `s3://bucket/out`."""
    return RemoteFiles(name) if "://" in name else SetFiles(name)
