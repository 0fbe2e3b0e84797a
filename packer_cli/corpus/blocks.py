"""Bytes of a file in order, decompressed, and the one pass that fingerprints a file."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import BinaryIO

from packer_cli.corpus.types import CorpusFile
from packer_cli.errors import InputError, RunError

SCAN_BYTES = 8 << 20
"""Bytes a read when a file is scanned."""
COMPRESSED_BYTES = 128 << 10
"""Compressed bytes a read: small, because 1 byte may become thousands."""
MAX_ZSTD_WINDOW = 1 << 31

Progress = Callable[[int], None]
"""Called with the number of bytes just read."""


def unreadable(path: str, error: BaseException | str) -> InputError:
    """The one-line error for a file that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"{path}: cannot be read: {' '.join(str(reason).split()) or type(error).__name__}")


def fingerprint(
    path: str, *, progress: Progress | None = None, on_chunk: Callable[[bytes], None] | None = None
) -> str:
    """xxh3-128 of a file's bytes, in hexadecimal; `on_chunk` sees each chunk of the same pass.

    Reads the file once, 8 MiB at a time. Raises InputError when it cannot be read.
    """
    import xxhash

    digest = xxhash.xxh3_128()
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(SCAN_BYTES):
                digest.update(chunk)
                if on_chunk is not None:
                    on_chunk(chunk)
                if progress is not None:
                    progress(len(chunk))
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()


class Blocks:
    """Reads a file, or a byte range of a plain one, from front to back, decompressing as it goes.

    After `read` has returned nothing, `broken` says why the data ended early ("" when it did not).
    Raises InputError when the file cannot be opened, RunError when a plain file has become shorter.
    """

    def __init__(self, file: CorpusFile, start: int = 0, stop: int | None = None) -> None:
        self._path = file.path
        self._left = (file.num_bytes if stop is None else stop) - start
        self.consumed = 0
        """Bytes of the file itself read so far, compressed ones for a compressed file."""
        self.broken = ""
        try:
            self._raw: BinaryIO = open(file.path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
            self._raw.seek(start)
        except OSError as error:
            raise unreadable(file.path, error) from error
        self._inflate: _Gzip | _Zstd | None = None
        if file.compression == "gzip":
            self._inflate = _Gzip()
        elif file.compression == "zstd":
            self._inflate = _Zstd()

    def __enter__(self) -> Blocks:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read(self, size: int) -> bytes:
        """About `size` bytes, at least one; nothing at the end."""
        if self._inflate is None:
            return self._read_plain(size)
        parts: list[bytes] = []
        total = 0
        while total < size and not self.broken:
            compressed = self._read_raw(COMPRESSED_BYTES) if self._inflate.hungry else b""
            at_end = not compressed and self._inflate.hungry
            if at_end and not self._inflate.inside:
                break
            try:
                part = self._inflate.feed(compressed, size)
            except ValueError as error:
                self.broken = f"compressed data is corrupt ({error})"
                break
            if at_end and not part:  # zlib may have held back output until now
                if self._inflate.inside:
                    self.broken = "compressed data ends early"
                break
            parts.append(part)
            total += len(part)
        return b"".join(parts)

    def _read_plain(self, size: int) -> bytes:
        if self._left <= 0:
            return b""
        block = self._read_raw(min(size, self._left))
        if not block:
            raise RunError(
                f"{self._path}: the file has become shorter since it was scanned; run again on a file at rest"
            )
        self._left -= len(block)
        return block

    def _read_raw(self, size: int) -> bytes:
        try:
            data = self._raw.read(size)
        except OSError as error:
            raise unreadable(self._path, error) from error
        self.consumed += len(data)
        return data


class _Gzip:
    """Feeds gzip members, one after another, to zlib; its own loop keeps what precedes a break."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._pending = b""
        self.inside = True
        """Whether a member has begun and not ended; an empty file counts as broken."""

    @property
    def hungry(self) -> bool:
        """Whether it needs more input to go on."""
        return not self._pending

    def feed(self, data: bytes, size: int) -> bytes:
        """Up to `size` bytes of output; raises ValueError with zlib's reason."""
        data = self._pending or data
        if not self.inside:
            data = data.lstrip(b"\0")  # members may be padded with zeros
            if not data:
                self._pending = b""
                return b""
            self._member = zlib.decompressobj(wbits=31)
            self.inside = True
        try:
            output = self._member.decompress(data, size)
        except zlib.error as error:
            raise ValueError(str(error).split(": ")[-1]) from error
        self._pending = self._member.unconsumed_tail or self._member.unused_data
        self.inside = not self._member.eof
        return output


class _Zstd:
    """Feeds zstd frames, one after another; a frame that ends early is seen, not passed over."""

    def __init__(self) -> None:
        import zstandard

        self._context = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
        self._error = zstandard.ZstdError
        self._frame = self._context.decompressobj()
        self._pending = b""
        self.inside = True

    @property
    def hungry(self) -> bool:
        """Whether it needs more input to go on."""
        return not self._pending

    def feed(self, data: bytes, size: int) -> bytes:
        """All output of this input, which zstandard cannot bound; raises ValueError with its reason."""
        data = self._pending or data
        if not self.inside:
            self._frame = self._context.decompressobj()
            self.inside = True
        try:
            output = self._frame.decompress(data)
        except self._error as error:
            raise ValueError(str(error).split(": ")[-1]) from error
        self._pending = self._frame.unused_data
        self.inside = not self._frame.eof
        return output
