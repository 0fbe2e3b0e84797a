"""Bytes of a file in order, decompressed, and the one pass that fingerprints a file."""

from __future__ import annotations

import io
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, cast

import xxhash

from packer_cli.corpus.types import Compression, CorpusFile, CorpusSlice
from packer_cli.errors import HbpackError, InputError, RunError
from packer_cli.format.checksums import file_checksum
from packer_cli.remote import local
from packer_cli.remote.file_cache import KeptFile
from packer_cli.remote.path import RemotePath, as_path
from packer_cli.remote.system import ObjectInfo, is_url

SCAN_BYTES = 8 << 20
"""Bytes a read when a file is scanned."""
FIRST_BYTES = 64 << 10
"""Bytes of the first read, which is all of a small file: more memory would take longer to come by than the file."""
SMALL_BYTES = 4 << 20
"""Most bytes of an object that is read whole, with many others at a time."""
COMPRESSED_BYTES = 128 << 10
"""Compressed bytes a read."""
MAX_ZSTD_WINDOW = 1 << 27
"""Window that the zstd command line reads unless asked otherwise, and that we read where records are no longer."""


def unreadable(path: str, error: BaseException | str) -> InputError:
    """Make the one-line error for a file that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = " ".join(str(reason).split()).rstrip(".") or type(error).__name__
    return InputError(f"{path}: cannot be read: {reason}; correct it, or leave it out")


class DamagedFileError(InputError):
    """Error of a file that begins as its format does, and cannot be opened: it was cut short, or is damaged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(str(unreadable(path, reason)))
        self.reason = f"damaged: opening it fails ({reason.rstrip('.')})"


@contextmanager
def opening(file: CorpusFile, magic: bytes, what: str = "") -> Iterator[None]:
    """Turn errors into DamagedFileError where the file begins with `magic`, else into InputError, or leave them.

    Args:
        what: of another file, says what it is not.
    """
    try:
        yield
    except Exception as error:
        reason = why_damaged(file.path, error)
        with readable(file.path, OSError), open_file(file) as raw:
            is_damaged = raw.read(len(magic)) == magic
        if is_damaged:
            raise DamagedFileError(file.path, reason) from error
        raise unreadable(file.path, f"{what} ({reason})" if what else error) from error


def changed(path: str) -> RunError:
    """Make the one-line error for a file that is no longer the one that was listed."""
    return RunError(f"{path}: the file has changed since the run began; run again once nothing writes to it")


@contextmanager
def readable(path: str, errors: type[Exception] = Exception) -> Iterator[None]:
    """Turn errors into InputError, unless they are hbpack's own.

    Args:
        errors: pyarrow and others raise many kinds for a damaged file.
    """
    try:
        yield
    except HbpackError:
        raise
    except errors as error:
        raise unreadable(path, error) from error


def why_damaged(path: str, error: Exception) -> str:
    """Say what an error says of a part of a file. Raises errors of hbpack and the system, which say nothing of it."""
    if isinstance(error, HbpackError):
        raise error
    if isinstance(error, OSError) and error.errno:
        raise unreadable(path, error) from error
    return " ".join(str(error).split()) or type(error).__name__


def listed_version(file: CorpusFile) -> ObjectInfo | None:
    """Return what the stamp says of the version of an object, if reads can name it; else None."""
    size, _, version = file.stamp.partition(":")
    found = {"size": file.num_bytes, "ETag": version}
    is_one = is_url(file.path) and size.isdigit() and version not in ("", "None") and "," not in version
    return found if is_one and RemotePath(file.path).can_pin(found) else None


def keep_copy(file: CorpusFile) -> None:
    """Fetch an object that will be read more than once to the cache of this node, if it is large and there is room."""
    version = listed_version(file) if file.num_bytes > SMALL_BYTES else None
    if version is not None and (copy := local.find_copy(RemotePath(file.path), version, fetch=True)):
        copy.close()


def _find_copy(file: CorpusFile) -> KeptFile | None:
    version = listed_version(file)
    return None if version is None else local.find_copy(RemotePath(file.path), version)


def open_file(file: CorpusFile, stop: int | None = None) -> io.RawIOBase:
    """Open a file to be read forward, unbuffered; every reader of bytes opens its inputs here.

    Args:
        stop: nothing from there on is requested ahead of a read.

    Raises:
        OSError: it cannot be opened.
        RemoteError: the storage does not answer.
    """
    if file.content is not None:
        return cast("io.RawIOBase", io.BytesIO(file.content))
    path: Any = as_path(file.path)
    copy = _find_copy(file)
    if copy is not None or not isinstance(path, RemotePath):
        with closing(copy or KeptFile(path)) as kept:
            return cast("io.RawIOBase", kept.path.open("rb", buffering=0))
    ranges = path.open_ranges(goes_forward=True, listed=listed_version(file))
    if stop is not None:
        ranges.stop_at(stop)
    return ranges


def is_file(path: str) -> bool:
    """Whether there is a file of this name, or an object behind this URL."""
    return as_path(path).is_file()


def open_source(file: CorpusFile) -> Any:
    """Open a file for pyarrow, as a `NativeFile`: a memory map, or ranges that are requested as they are read.

    Raises:
        InputError: it cannot be opened.
        RemoteError: the storage does not answer.
    """
    if file.content is not None:
        import pyarrow as pa

        return pa.BufferReader(file.content)
    with readable(file.path), closing(_find_copy(file) or KeptFile(as_path(file.path))) as kept:
        return local.open_source(kept.path, listed=listed_version(file))


def fingerprint(file: CorpusFile, *, on_chunk: Callable[[bytes], None] | None = None) -> str:
    """Return the xxh3-128 of a file's bytes, in hexadecimal; `on_chunk` sees each chunk of the same pass.

    Reads the file once, 8 MiB at a time. Raises InputError when it cannot be read.
    """
    digest = xxhash.xxh3_128()
    with readable(file.path, OSError), open_file(file) as raw:
        size = FIRST_BYTES
        while chunk := raw.read(size):
            size = SCAN_BYTES
            digest.update(chunk)
            if on_chunk is not None:
                on_chunk(chunk)
    return digest.hexdigest()


def checksums(
    files: Sequence[CorpusFile],
    spans: Sequence[tuple[int, int]] = (),
    on_chunk: Callable[[bytes], None] = lambda chunk: None,
) -> tuple[str, list[str]]:
    """Return the fingerprint of a file, and the xxh3-128 of spans of it, of one pass.

    Args:
        files: the file, and what belongs to it: the fingerprint is then over those of each.
        spans: bytes that are read of it, rising.
        on_chunk: sees each chunk first, and may add spans that begin in it, or end the last one there.
    """
    digests: dict[int, xxhash.xxh3_128] = defaultdict(xxhash.xxh3_128)
    place = first = 0

    def see(chunk: bytes) -> None:
        nonlocal place, first
        on_chunk(chunk)
        while first < len(spans) and spans[first][1] <= place:
            first += 1
        for number in range(first, len(spans)):
            start, stop = spans[number]
            if start < place + len(chunk) and place < stop:
                digests[number].update(memoryview(chunk)[max(start - place, 0) : stop - place])
        place += len(chunk)

    of_each = [fingerprint(files[0], on_chunk=see), *map(fingerprint, files[1:])]
    content = of_each[0] if len(files) == 1 else xxhash.xxh3_128_hexdigest("".join(of_each).encode())
    return content, [digests[number].hexdigest() for number in range(len(spans))]


def with_checksums(slices: Sequence[CorpusSlice], paths: Sequence[str]) -> list[CorpusSlice]:
    """Add its fingerprint to slices of a file, and the checksums of their spans, or else of all of it, of one pass.

    Args:
        paths: the file, and what belongs to it.
    """
    files = [slices[0].file._replace(path=path) for path in paths]
    content, digests = checksums(files, [each.span or (0, 0) for each in slices])
    return [
        each._replace(file=each.file._replace(fingerprint=content), xxh3=xxh3 if each.span else content)
        for each, xxh3 in zip(slices, digests, strict=True)
    ]


def require_span(slice_: CorpusSlice) -> None:
    """Raise RunError if what was read of a slice is not what it was when the file was cut. Price: reading it again."""
    path, has_version = slice_.file.path, not slice_.file.stamp.endswith(":None")
    if slice_.span is None or not slice_.xxh3 or (is_url(path) and has_version):  # An object is replaced as a whole.
        return
    start, stop = slice_.span
    with readable(path, OSError):
        if file_checksum(as_path(path), start, stop - start) != slice_.xxh3:
            raise changed(path)


class Blocks(AbstractContextManager["Blocks"]):
    """Reads a file, or a byte range of a plain one, from front to back, decompressing as it goes.

    After `read` has returned nothing, `broken` says why the data ended early ("" when it did not).
    Raises InputError when the file cannot be opened, RunError when a plain file has become shorter, or what has been
    read to its end is not what `xxh3` says.
    """

    def __init__(
        self,
        file: CorpusFile,
        start: int = 0,
        stop: int | None = None,
        *,
        max_record_bytes: int = 1 << 31,
        xxh3: str = "",
    ) -> None:
        """Open the file.

        Args:
            xxh3: what the range, or the whole compressed file, was when it was cut; empty where nobody has read it.
        """
        self._xxh3, self._digest = xxh3, xxhash.xxh3_128()
        self._path = file.path
        stop = file.num_bytes if stop is None else stop
        if file.compression != "none" and xxh3:  # Each slice of it is read from the beginning.
            keep_copy(file)
        self.left = stop - start
        """Bytes of the file itself, or of the range, that have not been read yet."""
        self.consumed = 0
        """Bytes of the file itself read so far, compressed ones for a compressed file."""
        self.broken = ""
        with readable(file.path, OSError):
            self._raw = open_file(file, stop)
            if start:
                self._raw.seek(start)
        self._most = 0
        self._inflated: Iterator[bytes] | None = None
        if file.compression != "none":
            window_log = min(max(MAX_ZSTD_WINDOW, max_record_bytes).bit_length() - 1, 31)
            self._inflated = self._inflate(file.compression, window_log)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Read about `size` bytes, at least one; nothing at the end."""
        if self._inflated is None:
            if self.left <= 0:
                return b""
            block = self._read_raw(min(size, self.left))
            if not block:
                raise changed(self._path)
            return block
        self._most = size
        parts: list[bytes] = []
        total = 0
        try:
            while total < size and (part := next(self._inflated, b"")):
                parts.append(part)
                total += len(part)
        except ValueError as error:
            self.broken = str(error)
        return b"".join(parts)

    def _inflate(self, compression: Compression, window_log: int) -> Iterator[bytes]:
        """Yield up to `_most` decompressed bytes at a time, across the members or frames of a file.

        Raises:
            ValueError: the data is damaged, in words.
        """
        begin, errors = _decompressors(compression, window_log)
        data = self._read_raw(COMPRESSED_BYTES)
        is_first = True
        while data or is_first:  # An empty file is incomplete.
            member, is_first = begin(), False
            while not member.eof:
                at_end = not data and getattr(member, "needs_input", True)
                try:
                    part = member.decompress(data, self._most)
                except errors as error:
                    raise ValueError(_why_corrupt(error, window_log)) from error
                if part:
                    yield part
                elif at_end:  # zlib may have held back output until now.
                    raise ValueError("compressed data ends early")
                data = getattr(member, "unconsumed_tail", b"")
                if not data and getattr(member, "needs_input", True) and not member.eof:
                    data = self._read_raw(COMPRESSED_BYTES)
            data = member.unused_data or self._read_raw(COMPRESSED_BYTES)
            while compression in ("gzip", "xz") and data and not (data := data.lstrip(b"\0")):
                data = self._read_raw(COMPRESSED_BYTES)  # Members may be padded with zeros.

    def _read_raw(self, size: int) -> bytes:
        with readable(self._path, OSError):
            data = self._raw.read(size)
        self.consumed += len(data)
        self.left -= len(data)
        if self._xxh3:
            self._digest.update(data)
            if not self.left and self._digest.hexdigest() != self._xxh3:
                raise changed(self._path)
        return data


def _decompressors(compression: Compression, window_log: int) -> tuple[Callable[[], Any], type[Exception]]:
    """Return what makes a decompressor of one member, and what it raises for damaged data."""
    if compression == "gzip":
        return partial(zlib.decompressobj, wbits=31), zlib.error
    if compression == "bz2":
        import bz2

        return bz2.BZ2Decompressor, OSError
    if compression == "xz":
        import lzma

        memory = 2 * MAX_ZSTD_WINDOW  # xz -9 needs 65 MiB.
        return partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=memory), lzma.LZMAError
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window_log}
    return partial(zstd.ZstdDecompressor, options=options), zstd.ZstdError


def _why_corrupt(error: Exception, window_log: int) -> str:
    reason = str(error).split(": ")[-1].rstrip(".")
    if "too much memory" in reason:
        most = 2**window_log >> 20
        return f"its zstd window is over {most} MiB; decompress it first, or raise --max-record-bytes"
    return f"compressed data is corrupt ({reason})"
