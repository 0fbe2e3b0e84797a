"""gzip and zstd in small steps: no call returns more than requested, so a small file cannot fill the memory."""

from __future__ import annotations

import sys
import zlib
from typing import Any, Literal, Protocol

MAX_ZSTD_WINDOW = 1 << 27
"""What the zstd command line reads unless asked otherwise, and so do we where records are no longer than this."""


class Decompressor(Protocol):
    """Takes compressed bytes in order, across the members or frames of a file."""

    inside: bool
    """Whether a member has begun and not ended. True at first: an empty file is incomplete."""

    @property
    def hungry(self) -> bool:
        """Whether it needs input before it can give more."""

    def feed(self, data: bytes, size: int) -> bytes:
        """Up to `size` bytes of output; `data` is empty unless it is hungry.

        Raises:
            ValueError: the data is damaged, in words.
        """


def make_decompressor(compression: Literal["gzip", "zstd"], max_record_bytes: int) -> Decompressor:
    """A decompressor whose memory does not exceed what one record may take."""
    return Gzip() if compression == "gzip" else Zstd(max(MAX_ZSTD_WINDOW, max_record_bytes))


class Gzip:
    """gzip members, one after another."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._pending = b""
        self.inside = True

    @property
    def hungry(self) -> bool:
        """Whether all input has been used."""
        return not self._pending

    def feed(self, data: bytes, size: int) -> bytes:
        """See `Decompressor`."""
        data = self._pending or data
        if not self.inside:
            data = data.lstrip(b"\0")  # Members may be padded with zeros.
            if not data:
                self._pending = b""
                return b""
            self._member = zlib.decompressobj(wbits=31)
            self.inside = True
        try:
            output = self._member.decompress(data, size)
        except zlib.error as error:
            raise ValueError(f"compressed data is corrupt ({str(error).split(': ')[-1]})") from error
        self._pending = self._member.unconsumed_tail or self._member.unused_data
        self.inside = not self._member.eof
        return output


class Zstd:
    """zstd frames, one after another; a window of more than `max_window` bytes is refused."""

    def __init__(self, max_window: int) -> None:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd

        self._zstd = zstd
        self._window_log = min(max_window.bit_length() - 1, 31)
        self._frame = self._new_frame()
        self._pending = b""
        self.inside = True

    def _new_frame(self) -> Any:
        return self._zstd.ZstdDecompressor(
            options={self._zstd.DecompressionParameter.window_log_max: self._window_log}
        )

    @property
    def hungry(self) -> bool:
        """Whether all input has been used."""
        return not self._pending and (not self.inside or self._frame.needs_input)

    def feed(self, data: bytes, size: int) -> bytes:
        """See `Decompressor`."""
        if not self.inside:
            data = self._pending or data
            self._frame = self._new_frame()
            self.inside = True
        try:
            output = self._frame.decompress(data, size)
        except self._zstd.ZstdError as error:
            reason = str(error).split(": ")[-1].rstrip(".")
            if "too much memory" in reason:
                raise ValueError(
                    f"its zstd window is over {2**self._window_log >> 20} MiB; "
                    "decompress it first, or raise --max-record-bytes"
                ) from error
            raise ValueError(f"compressed data is corrupt ({reason})") from error
        self._pending = self._frame.unused_data if self._frame.eof else b""
        self.inside = not self._frame.eof
        return output
