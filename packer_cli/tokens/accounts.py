"""Accounts of what went where: what was read of each input, and why records were rejected."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from packer_cli.format.metrics import ReasonCount
from packer_cli.format.tokens import DamagedFile, InputInfo, ReadFigures
from packer_cli.tokens.index import PartFile, StoreIndex

MOST_KINDS = 20
"""Kinds of reasons that are told apart; a template may bring a text of its own for each record."""
OTHERS = "other reasons"
_MOST_DAMAGED = 20
"""Damaged files of an input that a manifest lists; the store lists all."""
_TAIL = re.compile(r"; .*| \(.*", re.DOTALL)
_KEYS = re.compile(r'has keys (?:"[^"]*"|, |and \d+ more|none)+')
_VALUES = re.compile(r"(?<![\w.-])-?(?:0x[0-9a-f]+|\d[\d,]*(?:\.\d+)?)|(?<!\w)'[^']*'")


def kind_of(reason: str) -> str:
    """Return the kind of a reason: what it says, without the numbers and names of one record, and the remedy.

    >>> kind_of('messages[3] has no "role"; its keys: content')
    'messages[...] has no "role"'
    >>> kind_of("broken JSON: unexpected end of data at column 10")
    'broken JSON: unexpected end of data at column ...'
    """
    return _VALUES.sub("...", _KEYS.sub("has keys ...", _TAIL.sub("", reason)))[:100]


def most_frequent(kinds: Counter[str]) -> dict[str, int]:
    """Keep the most frequent kinds, these first, and count the others as one."""
    ordered = sorted(kinds.items(), key=lambda each: (each[0] == OTHERS, -each[1], each[0]))
    kept, rest = dict(ordered[:MOST_KINDS]), sum(number for _, number in ordered[MOST_KINDS:])
    return kept | {OTHERS: kept.get(OTHERS, 0) + rest} if rest else kept


def reasons_of(files: Iterable[PartFile]) -> tuple[ReasonCount, ...]:
    """Count the rejected records of files by the kind of reason, the most frequent first."""
    kinds = most_frequent(_kinds(files))
    return tuple(ReasonCount(reason=reason, records=number) for reason, number in kinds.items())


def _kinds(files: Iterable[PartFile]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for file in files:
        kinds.update(file.reasons)
    return kinds


SUMMED = ("num_samples", "num_rejected", "num_without_loss", "num_tokens", "num_loss_tokens")
"""Figures of a part, or of a file, that are the sums of those of its slices."""


def files_of(index: StoreIndex, first: int = 0) -> list[PartFile]:
    """List the files of a store's inputs, from this one on, each with the figures of all of its slices."""
    slices: dict[tuple[int, str], list[PartFile]] = {}
    for file in (file for part in index.parts for file in part.files if file.source >= first):
        slices.setdefault((file.source, file.path), []).append(file)
    return [own[0] if len(own) == 1 else _summed(own) for own in slices.values()]


def _summed(slices: list[PartFile]) -> PartFile:
    return replace(
        slices[0],
        **{name: sum(getattr(file, name) for file in slices) for name in SUMMED},
        reasons=dict(_kinds(slices)),
        lost_bytes=min(slices[0].num_bytes, sum(file.lost_bytes for file in slices)),
        unreadable=next((file.unreadable for file in slices if file.unreadable), ""),
    )


def inputs_of(index: StoreIndex) -> tuple[InputInfo, ...]:
    """Describe the inputs of a store, and what was read of each."""
    files: list[list[PartFile]] = [[] for _ in index.sources]
    for file in files_of(index):
        files[file.source].append(file)
    return tuple(
        InputInfo(**{name: value for name, value in vars(source).items() if name != "folder"}, read=_read(own))
        for source, own in zip(index.sources, files, strict=True)
    )


def _read(files: list[PartFile]) -> ReadFigures:
    damaged = sorted((file for file in files if file.unreadable), key=lambda file: -file.lost_bytes)
    return ReadFigures(
        files=len(files),
        num_bytes=sum(file.num_bytes for file in files),
        records=sum(file.num_records for file in files),
        rejected=sum(file.num_rejected for file in files),
        tokens=sum(file.num_tokens for file in files),
        loss_tokens=sum(file.num_loss_tokens for file in files),
        num_damaged=len(damaged),
        lost_bytes=sum(file.lost_bytes for file in damaged),
        damaged=tuple(
            DamagedFile(path=file.path, num_bytes=file.lost_bytes, reason=file.unreadable)
            for file in damaged[:_MOST_DAMAGED]
        ),
    )
