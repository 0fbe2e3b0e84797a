"""All that `hbpack bench-loader` measures, as JSON values.

For each number of workers: the epoch in its order, as training reads it and as the files are found, in the page cache
or not; then a few iterations of each group again and again, once they have been read. The workers' start is told
apart, as the time to the first batch.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from packer_cli.errors import ConfigError
from packer_cli.loader import FORMATS, PackedDataset
from packer_cli.loader.storage import is_url
from packer_cli.report.compare.memory import PeakMemory, mapped_bytes, private_bytes
from packer_cli.report.show.files import open_files
from packer_cli.report.show.places import RankEpoch, read_rank
from packer_cli.report.speed.timing import Limit, Repeated, Timings, time_loader, time_reading

MOST_ITERATIONS = 64
"""Of a group that are read again and again: so few that they lie in a shard or two, and one pass ends in time."""

ALL = "all, in order"


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """What to measure."""

    rank: int = 0
    format: str = "transformers"
    workers: tuple[int, ...] = (0,)
    limit: Limit
    """Of each row of the table."""
    cache_dir: str | None = None
    """Of a remote set: where a folder for its shards is made, and removed at the end."""


def measure_loader(path: str, options: SpeedOptions) -> dict[str, Any]:
    """JSON values: `open_seconds`, `rows`, `workers` (one entry a number of workers) and what they were measured on.

    Price: `limit` for each number of workers and group, and once more for the epoch in its order. Of a remote set the
    shards of the first iterations are fetched once for each number of workers.

    Raises:
        ConfigError: there is no such rank or format.
        HbpackError: as `PackedDataset`.
        ImportError: the format, or the remote storage, needs a library that is missing.
    """
    if options.format not in FORMATS:
        raise ConfigError(f"--format: unknown format {options.format!r}; known: {', '.join(FORMATS)}")
    is_remote = is_url(path)
    files = open_files(path)
    manifest = files.manifest()
    groups = _by_group(read_rank(files, manifest, options.rank, manifest.first_epoch))
    rows: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    opening: float | None = None
    floors: dict[int, float] = {}
    for workers in options.workers:
        with _cache(options.cache_dir, is_remote) as cache_dir:
            mapped, memory = mapped_bytes(), PeakMemory()
            start = time.perf_counter()
            dataset = PackedDataset(path, options.rank, manifest.num_gpus, format=options.format, cache_dir=cache_dir)
            seconds = time.perf_counter() - start
            opening = seconds if opening is None else opening
            meter = _Meter(dataset, workers, options.limit)
            name = f"{ALL}, uncached" if is_remote else ALL
            rows.append(_row(name, workers, meter.measure(range(len(dataset))), None))
            first = meter.first_batch
            for group, iterations in groups.items():
                # Once, so that nothing is fetched meanwhile, and for the floor, which is that of one process.
                once = time_reading(dataset, iterations, Limit(num_batches=len(iterations)))
                floors.setdefault(group, _mean(once.copy_seconds))
                timings = meter.measure(Repeated(iterations))
                rows.append(_row(manifest.groups[group].name, workers, timings, floors[group]))
            peak = memory.num_bytes()
            entries.append(
                {
                    "workers": workers,
                    "first_batch_seconds": first,
                    "peak_bytes": peak,
                    "mapped_bytes": _growth(mapped, mapped_bytes(), peak),
                    "worker_bytes": meter.worker_bytes,
                }
            )
            del dataset, meter
    return {
        "format": options.format,
        "rank": options.rank,
        "num_gpus": manifest.num_gpus,
        "is_remote": is_remote,
        "open_seconds": opening,
        "rows": rows,
        "workers": entries,
        "num_cpus": os.cpu_count(),
        "torch_version": torch.__version__,
    }


class _Meter:
    """Measures with some number of workers."""

    def __init__(self, dataset: PackedDataset, workers: int, limit: Limit) -> None:
        self.dataset = dataset
        self.workers = workers
        self.limit = limit
        self.first_batch: float | None = None
        """Seconds to the very first one, the start of the workers included."""
        self.worker_bytes: int | None = None
        """Private memory of all workers, at most."""

    def measure(self, iterations: range | Repeated) -> Timings:
        """Batches of these iterations, until the limit or the end."""
        if not self.workers:
            if self.first_batch is None:
                self.first_batch = _mean(time_reading(self.dataset, [0], Limit(num_batches=1)).seconds)
            return time_reading(self.dataset, iterations, self.limit)
        loader = DataLoader(self.dataset, batch_size=None, sampler=iterations, num_workers=self.workers)
        first, timings = time_loader(loader, self.limit, self._weigh)
        if self.first_batch is None:
            self.first_batch = first
        return timings

    def _weigh(self) -> None:
        pids = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
        held = private_bytes(pids)
        if held is not None:
            self.worker_bytes = max(held, self.worker_bytes or 0)


def _by_group(rows: RankEpoch) -> dict[int, list[int]]:
    """The first iterations of each group in the order of the epoch, `MOST_ITERATIONS` at most."""
    groups: dict[int, list[int]] = {}
    for i, group in enumerate(rows.columns["group"].tolist()):
        iterations = groups.setdefault(group, [])
        if len(iterations) < MOST_ITERATIONS:
            iterations.append(i)
    return dict(sorted(groups.items()))


def _row(name: str, workers: int, timings: Timings, floor: float | None) -> dict[str, Any]:
    """Figures out of the sums: an epoch takes as long as all its batches."""
    if floor is None and timings.copy_seconds:
        floor = _mean(timings.copy_seconds)
    seconds, tokens = sum(timings.seconds), sum(timings.num_tokens)
    num = len(timings.seconds)
    return {
        "name": name,
        "workers": workers,
        "num_batches": num,
        "tokens_per_batch": tokens / num if num else None,
        "seconds_per_batch": seconds / num if num else None,
        "batches_per_second": num / seconds if seconds else None,
        "tokens_per_second": tokens / seconds if seconds else None,
        "floor_seconds_per_batch": floor,
    }


def _growth(before: int | None, now: int | None, most: int | None) -> int | None:
    return None if before is None or now is None or most is None else min(max(0, now - before), most)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@contextmanager
def _cache(cache_dir: str | None, is_remote: bool) -> Iterator[Path | None]:
    """A new folder for the shards of a remote set, which goes again."""
    if not is_remote:
        yield None
        return
    from packer_cli.loader.remote import default_cache_dir

    parent = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-loader-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
