"""Whether what was tokenized is accepted: `--max-rejected` and `--strict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packer_cli.corpus.data_files import by_suffix, shown_skipped
from packer_cli.errors import TooManyRejectedError
from packer_cli.sizes import counted, format_bytes, parse_limit
from packer_cli.tokens.accounts import files_of, kind_of, reasons_of
from packer_cli.tokens.index import PartFile, StoreIndex
from packer_cli.tokens.rejects import store_rejects


def require_accepted(index: StoreIndex, store: Path, first: int, max_rejected: str | None, *, strict: bool) -> None:
    """Check the parts of a store, which are all finished, before its index is written.

    Args:
        first: the first input that counts.

    Raises:
        TooManyRejectedError: more was rejected than `max_rejected` allows, or with `strict`, a file was skipped or is
            damaged.
    """
    files = files_of(index, first)
    if max_rejected is not None:
        _require_few(files, max_rejected, index, store)
    if strict:
        _require_whole(files, index, first)


def _require_few(files: Sequence[PartFile], limit: str, index: StoreIndex, store: Path) -> None:
    most, unit = parse_limit(limit)
    lost = num_lost_records(files)
    number, total = sum(file.num_refused for file in files) + lost, sum(file.num_records for file in files) + lost
    what = f"{number:,} of {counted(total, 'record')}"
    if unit == "%bytes":
        number, total = round(sum(map(_refused_bytes, files))), sum(file.num_bytes for file in files)
        what = f"{format_bytes(number)} of {format_bytes(total)}"
    share = number / max(1, total)
    if (100 * share if unit else number) > most:
        why = _why(files, lost, index, store)
        raise TooManyRejectedError(
            f"{what} ({share:.2%}) rejected, more than --max-rejected {limit}, most often: {why}",
            f"see {store / 'rejected-*.jsonl'!s}, or raise the limit: the run then goes on from here",
        )


def num_lost_records(files: Sequence[PartFile]) -> int:
    """Estimate the records that damaged files lost: as many a byte as the other files of their input hold."""
    lost = 0.0
    for source in {file.source for file in files if file.lost_bytes}:
        own = [file for file in files if file.source == source]
        lost += sum(file.lost_bytes for file in own) * (_density(own) or _density(files))
    return round(lost)


def _density(files: Sequence[PartFile]) -> float:
    """Return the records in a byte that was read."""
    num_bytes = sum(file.num_bytes - file.lost_bytes for file in files)
    return sum(file.num_records for file in files) / num_bytes if num_bytes else 0.0


def _refused_bytes(file: PartFile) -> float:
    """Estimate the bytes of a file that hold rejected records, all records being of one size, or are lost."""
    return file.lost_bytes + (file.num_bytes - file.lost_bytes) * file.num_refused / max(1, file.num_records)


def _why(files: Sequence[PartFile], num_lost: int, index: StoreIndex, store: Path) -> str:
    """Write the most frequent reason, with a place."""
    top, names = reasons_of(files)[0], {file.path for file in files}
    if num_lost > top.records:
        worst = max(files, key=lambda file: file.lost_bytes)
        return f"lost in damaged files, about {counted(num_lost, 'record')}, such as {worst.path}: {worst.unreadable}"
    found = (each for each in store_rejects(index, store) if each.file in names and kind_of(each.reason) == top.reason)
    place = next((f", the first at {entry.file}:{entry.line}" for entry in found), "")
    return f"{top.reason} ({top.records:,}{place})"


def _require_whole(files: Sequence[PartFile], index: StoreIndex, first: int) -> None:
    skipped = by_suffix(each for source in index.sources[first:] for each in source.skipped or ())
    damaged = [f"{file.path}: {file.unreadable}" for file in files if file.unreadable]
    faults = ([f"skipped {shown_skipped(skipped)}"] if skipped else []) + damaged
    if faults:
        more = f", and {counted(len(faults) - 2, 'other file')}" if len(faults) > 2 else ""
        raise TooManyRejectedError(
            f"--strict takes no skipped or damaged files: {'; '.join(faults[:2])}{more}",
            "remove them, name the others or a pattern such as *.jsonl, or leave out --strict: the run then goes on "
            "from here",
        )
