"""Texts of samples on disk, for the time of an export: written in the order of the store, taken in that of the packs.

Two temporary files hold them: the texts one after another, and where each begins. Price: the bytes of the texts and 8
a sample, on disk; 4 bytes of memory a sample to write them, and none to read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.export.packed import Lists
from packer_cli.export.shard import Int64Array, copy_bytes
from packer_cli.files import HashingFile, commit_file, temporary_file
from packer_cli.remote.local import map_file

_SAMPLES_AT_ONCE = 1 << 20


class SampleTexts:
    """Texts by sample id. Safe for several threads at once."""

    def __init__(self, texts: NDArray[np.uint8], offsets: Int64Array) -> None:
        self._texts = texts
        """uint8[b], read-only: one text after another."""
        self._offsets = offsets
        """int64[n+1]: where each begins; a sample that was not written has an empty one."""

    @classmethod
    def open(cls, folder: Path, facts: dict[str, Any]) -> SampleTexts:
        """Map what `written_texts` gave."""
        texts, offsets = (_map(folder / file["path"], file) for file in (facts["texts"], facts["offsets"]))
        return cls(texts, offsets.view(np.int64))

    def rows(self, samples: Lists, begin: bytes, between: bytes, end: bytes) -> NDArray[np.uint8]:
        """uint8[m]: for each row its texts, with what is around and between them. O(m); no row may be empty.

        >>> texts = np.frombuffer(b"onetwothree", np.uint8)
        >>> samples = Lists(offsets=np.array([0, 2, 3]), values=np.array([2, 0, 1]))
        >>> SampleTexts(texts, np.array([0, 3, 6, 11])).rows(samples, b"<", b", ", b">").tobytes()
        b'<three, one><two>'
        """
        starts = self._offsets[samples.values]
        sizes = self._offsets[samples.values + 1] - starts
        before = np.full(len(sizes), len(between))
        before[samples.offsets[:-1]] = len(begin)
        after = np.zeros(len(sizes), dtype=np.int64)
        after[samples.offsets[1:] - 1] = len(end)
        stops = np.cumsum(before + sizes + after)
        places = stops - after - sizes
        out = np.empty(int(stops[-1]), dtype=np.uint8)
        copy_bytes(self._texts, starts, sizes, places, out)
        is_first = np.zeros(len(sizes), dtype=np.bool_)
        is_first[samples.offsets[:-1]] = True
        for text, ends in ((begin, places[is_first]), (between, places[~is_first]), (end, stops[after > 0])):
            out[ends[:, None] + np.arange(-len(text), 0)] = np.frombuffer(text, dtype=np.uint8)
        return out


def _map(path: Path, file: dict[str, Any]) -> NDArray[np.uint8]:
    with map_file(path, file["num_bytes"], file["xxh3"]) as source:
        return np.frombuffer(source.read_buffer(), dtype=np.uint8)


@contextmanager
def written_texts(
    texts: Iterator[tuple[int, bytes]], num_samples: int, folder: Path, name: str
) -> Iterator[dict[str, Any]]:
    """Keep texts in a folder while the block runs; gives what `SampleTexts.open` needs, JSON values.

    Args:
        texts: sample ids and texts, increasing; at least one.
        num_samples: of the store.
        name: ends the names of the files.
    """
    paths = folder / f"texts-{name}", folder / f"offsets-{name}"
    try:
        with temporary_file(paths[0]) as written, temporary_file(paths[1]) as places:
            _write(texts, num_samples, written[1], places[1])
        facts = {}
        for key, path, (temporary, file) in zip(("texts", "offsets"), paths, (written, places), strict=True):
            commit_file(temporary, path, sync=False)
            facts[key] = {"path": path.name, "num_bytes": file.num_bytes, "xxh3": file.hexdigest()}
        yield facts
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()  # So that an export that is refused leaves nothing.


def _write(texts: Iterator[tuple[int, bytes]], num_samples: int, file: HashingFile, offsets: HashingFile) -> None:
    sizes = np.zeros(num_samples, dtype=np.uint32)
    for sample, text in texts:
        sizes[sample] = file.write(text)
    end = np.zeros(1, dtype=np.int64)
    offsets.write(end)
    for first in range(0, num_samples, _SAMPLES_AT_ONCE):
        ends = end[-1] + np.cumsum(sizes[first : first + _SAMPLES_AT_ONCE], dtype=np.int64)
        offsets.write(ends)
        end = ends
