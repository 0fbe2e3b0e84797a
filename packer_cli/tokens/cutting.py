"""Cuts input files into the slices of each part. The result depends only on the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from packer_cli.corpus.blocks import fingerprint as fingerprint_file
from packer_cli.corpus.discover import slice_corpus
from packer_cli.corpus.readers.hf import folder_of
from packer_cli.corpus.types import CorpusFile, CorpusSlice
from packer_cli.engine.base import Engine
from packer_cli.engine.worker import Died
from packer_cli.files import fingerprint
from packer_cli.tokens.slices import EXPANSION

COLUMNAR = ("parquet", "arrow", "datasets")
"""Formats that pyarrow reads. A damaged file may crash the process, or be read without an error."""
FILES_A_TASK = 64
GROUP_BYTES = 4 << 20
"""Small files share a part up to this size, which is the smallest slice of a large file."""
GROUP_FILES = 1024


def is_columnar(file: CorpusFile) -> bool:
    """Whether pyarrow reads the file, which may crash the process."""
    return file.format in COLUMNAR


def cut_files(files: Sequence[CorpusFile], engine: Engine) -> list[CorpusSlice]:
    """Slices of all files, in order, with fingerprints; a file that crashes its reader is marked as unreadable.

    Price: that of `slice_corpus`; columnar files use all workers.

    Raises:
        InputError: a file cannot be read.
    """
    cut: dict[int, list[CorpusSlice]] = {}
    columnar = [number for number, file in enumerate(files) if is_columnar(file)]
    tasks = [columnar[i : i + FILES_A_TASK] for i in range(0, len(columnar), FILES_A_TASK)]
    while tasks:
        crashed: list[list[int]] = []
        for i, outcome in engine.run(_cut_each, [[files[n] for n in task] for task in tasks], is_risky=lambda _: True):
            if not isinstance(outcome, Died):
                cut.update(zip(tasks[i], outcome, strict=True))
            elif len(tasks[i]) > 1:
                crashed += [[number] for number in tasks[i]]
            else:
                cut[tasks[i][0]] = [_unreadable(files[tasks[i][0]], outcome)]
        tasks = crashed
    for number, file in enumerate(files):
        if number not in cut:
            cut[number] = slice_corpus([file])
    return [slice_ for number in range(len(files)) for slice_ in cut[number]]


def _cut_each(files: list[CorpusFile]) -> list[list[CorpusSlice]]:
    return [slice_corpus([file]) for file in files]


def _unreadable(file: CorpusFile, died: Died) -> CorpusSlice:
    """One unreadable slice for a whole file that crashes its reader on opening."""
    if file.format == "datasets":
        folder = folder_of(file.path)
        names = sorted(name for name in os.listdir(folder) if name.endswith(".arrow"))
        content = fingerprint([fingerprint_file(os.path.join(folder, name)) for name in names])
    else:
        content = fingerprint_file(file.path)
    reason = f"damaged: opening it crashes the reader ({died.signal_name}); what it holds is left out"
    return CorpusSlice(
        file=replace(file, fingerprint=content), start=0, stop=max(file.num_bytes, 1), unreadable=reason
    )


def group_slices(slices: Sequence[CorpusSlice]) -> list[tuple[CorpusSlice, ...]]:
    """The slices of each part: consecutive small files share a part; every other slice has its own."""
    parts: list[tuple[CorpusSlice, ...]] = []
    group: list[CorpusSlice] = []
    held = 0
    for _, same_file in groupby(slices, key=lambda slice_: (slice_.file.path, slice_.file.source_id)):
        of_file = list(same_file)
        size = _weight(of_file[0].file)
        is_small = len(of_file) == 1 and size <= GROUP_BYTES
        if group and not (is_small and held + size <= GROUP_BYTES and len(group) < GROUP_FILES):
            parts.append(tuple(group))
            group, held = [], 0
        if is_small:
            group.append(of_file[0])
            held += size
        else:
            parts += [(slice_,) for slice_ in of_file]
    return [*parts, tuple(group)] if group else parts


def _weight(file: CorpusFile) -> int:
    is_dense = file.compression != "none" or file.format == "parquet"
    return file.num_bytes * (EXPANSION if is_dense else 1)


def without_crashes(
    slices: Sequence[CorpusSlice],
    engine: Engine,
    read: Callable[[CorpusSlice], None],
) -> tuple[CorpusSlice, ...] | None:
    """The slices of a part that crashed its worker; those that crash again when read are marked as unreadable.

    None if no slice crashes when read.
    """
    outcomes = dict(engine.run(read, list(slices), is_risky=lambda _: True))
    if not any(isinstance(outcome, Died) for outcome in outcomes.values()):
        return None
    return tuple(_marked(slice_, outcomes[number]) for number, slice_ in enumerate(slices))


def _marked(slice_: CorpusSlice, outcome: Died | None) -> CorpusSlice:
    if not isinstance(outcome, Died):
        return slice_
    reason = (
        f"damaged: reading it from record {slice_.first_line} on crashes the reader ({outcome.signal_name}); "
        "what it holds from there is left out"
    )
    return replace(slice_, unreadable=reason)
