"""The rejected records of a part of the token store, a file beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from packer_cli.corpus.types import Gap, Reject
from packer_cli.engine.sink import Sink
from packer_cli.errors import FormatError
from packer_cli.files import HashingFile
from packer_cli.format.checksums import find_damage
from packer_cli.tokens.cutting import LINE_BITS, count_by_slice, with_lines
from packer_cli.tokens.index import INDEX_NAME, remedy


def rejects_name(name: str) -> str:
    """Return the file name of a part's rejected records; the file exists only if there are any."""
    return name.replace("part-", "rejected-").replace(".arrow", ".jsonl")


class RejectsWriter(ExitStack):
    """Writer of a part's rejected records as they come, with counts of them. Memory: one batch of them."""

    def __init__(self, sink: Sink, part: str, num_slices: int) -> None:
        """Open no file before there is a reject.

        Args:
            part: file name of the part.
            num_slices: number of slices of input in the part.
        """
        super().__init__()
        self.num_rejected = np.zeros(num_slices, dtype=np.int64)
        """int64[s]: number of rejected records of each slice."""
        self.gaps = [""] * num_slices
        """The reason of each slice's first gap; "" for a slice that has none."""
        self._sink, self._name = sink, rejects_name(part)
        self._file: HashingFile | None = None

    def write(self, rejects: Sequence[Reject]) -> None:
        """Append the rejects of the next batch; `line` is their key, see `packer_cli.tokens.cutting`."""
        if not rejects:
            return
        if self._file is None:
            self._file = self.enter_context(self._sink.file(self._name))
        keys = np.array([reject.line for reject in rejects], dtype=np.int64)
        self.num_rejected += count_by_slice(keys, len(self.num_rejected))
        for reject in rejects:
            if isinstance(reject, Gap):
                number = reject.line >> LINE_BITS
                self.gaps[number] = self.gaps[number] or reject.reason
        lines = [json.dumps(reject._asdict(), ensure_ascii=False) + "\n" for reject in with_lines(rejects)]
        self._file.write("".join(lines).encode())

    @property
    def xxh3(self) -> str | None:
        """Checksum of the file; None if there are no rejects."""
        return None if self._file is None else self._file.hexdigest()


def read_rejects(path: Path, xxh3: str) -> Iterator[Reject]:
    """Yield the rejected records of a part, file by file. Price: reading the file twice, as it is checked first.

    Args:
        xxh3: checksum of the file.

    Raises:
        FormatError: the file is missing or damaged.
    """
    why = find_damage(path, None, xxh3, INDEX_NAME)
    if why is not None:
        raise FormatError(f"{str(path)!r} is damaged ({why}); {remedy(path)}")
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield Reject(**json.loads(line))
