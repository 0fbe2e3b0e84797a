"""The measurements of `hbpack bench-loader`, as JSON values.

For each number of workers: the epoch in its order, as training reads it, with the files in the page cache or not;
then, repeatedly, a few iterations of each group that have been read before. The start of the workers is not included;
the time to the first batch shows it.

Times the batches of a loader. The floor: a loader that computes nothing. It keeps finished batches of an epoch in
memory, about as many as fit `MOST_BYTES`, and clones the tensors of the next one. Like the loader, it reads from
memory, not from the core's cache, and writes to memory that the process has written before. Loader and copy take
turns, so that each finds the caches as the other leaves them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from packer_cli.compare.row_figures import PeakMemory, mapped_bytes, private_bytes
from packer_cli.errors import ConfigError
from packer_cli.format.manifest import Manifest
from packer_cli.loader import FORMATS, PackedDataset
from packer_cli.loader.formats.base import is_list_of_batches
from packer_cli.remote.local import default_cache_dir
from packer_cli.remote.system import is_url
from packer_cli.show.places import RankEpoch, open_files, read_rank_epoch

MOST_ITERATIONS = 64
"""Most iterations of a group to repeat: few enough for a shard or two, and for a short pass."""

ALL = "all, in order"


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """What to measure."""

    rank: int = 0
    format: str = "transformers"
    workers: tuple[int, ...] = (0,)
    limit: Limit
    """Per row of the table."""
    cache_dir: str | None = None
    """For a remote set: where to create a folder for its shards, which is removed at the end."""


def measure_loader(path: str, options: SpeedOptions) -> dict[str, Any]:
    """JSON values: `open_seconds`, `rows`, `workers` (an entry for each number of workers), and the machine and set.

    Price: for each number of workers, `limit` for each group and once for the epoch in its order; then the floors,
    which read up to 256 MiB of each again. The shards of a remote set's first iterations are fetched once for each
    number of workers.

    Raises:
        ConfigError: there is no such rank or format.
        HbpackError: as `PackedDataset`.
        ImportError: the format, or the remote storage, needs a library that is missing.
    """
    if options.format not in FORMATS:
        raise ConfigError(f"--format: {FORMATS.unknown(options.format)}")
    is_remote = is_url(path)
    name = f"{ALL}, uncached" if is_remote else ALL
    files = open_files(path)
    manifest = files.manifest()
    groups = _by_group(read_rank_epoch(files, manifest, options.rank, manifest.first_epoch))
    rows: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    opening: float | None = None
    floors: dict[str, float] = {}
    for workers in options.workers:
        mapped, memory = mapped_bytes(), PeakMemory()
        with _open_set(path, manifest, options) as (dataset, seconds):
            opening = seconds if opening is None else opening
            meter = _Meter(dataset, workers, options.limit)
            rows.append(_row(name, workers, meter.measure(range(len(dataset)))))
            first = meter.first_batch
            for group, iterations in groups.items():
                for i in iterations:  # Once first, so that nothing is fetched during the measurement.
                    dataset[i]
                rows.append(_row(manifest.groups[group].name, workers, meter.measure(Repeated(iterations))))
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
            if workers == options.workers[-1]:  # At the end, since finished batches are not the loader's memory.
                in_order = next((row for row in rows if not row["workers"]), None)
                if in_order is not None:
                    floors[in_order["name"]] = floor_seconds(dataset, range(in_order["num_batches"]))
                for group, iterations in groups.items():
                    floors[manifest.groups[group].name] = floor_seconds(dataset, iterations)
            del dataset, meter
    for row in rows:  # The floor in order is that of one process; workers read another part of the epoch.
        is_same = row["name"] != name or not row["workers"]
        row["floor_seconds_per_batch"] = floors[row["name"]] if is_same else None
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
    """Measures with a given number of workers."""

    def __init__(self, dataset: PackedDataset, workers: int, limit: Limit) -> None:
        self.dataset = dataset
        self.workers = workers
        self.limit = limit
        self.first_batch: float | None = None
        """Seconds to the very first batch, including the start of the workers."""
        self.worker_bytes: int | None = None
        """Greatest private memory of all workers together."""

    def measure(self, iterations: range | Repeated) -> Timings:
        """Time the batches of these iterations, until the limit or the end."""
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
    """The first iterations of each group in the order of the epoch, at most `MOST_ITERATIONS`."""
    groups: dict[int, list[int]] = {}
    for i, group in zip(rows.columns["iteration"].tolist(), rows.columns["group"].tolist(), strict=True):
        iterations = groups.setdefault(group, [])
        if len(iterations) < MOST_ITERATIONS and i not in iterations[-1:]:
            iterations.append(i)
    return dict(sorted(groups.items()))


def _row(name: str, workers: int, timings: Timings) -> dict[str, Any]:
    """Figures from sums, not means: an epoch takes as long as all its batches."""
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
    }


def _growth(before: int | None, now: int | None, most: int | None) -> int | None:
    return None if before is None or now is None or most is None else min(max(0, now - before), most)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@contextmanager
def _open_set(path: str, manifest: Manifest, options: SpeedOptions) -> Iterator[tuple[PackedDataset, float]]:
    """The data set, and the seconds to open it. A remote set's shards are cached in a temporary folder."""
    with _cache(options.cache_dir) if is_url(path) else nullcontext() as cache_dir:
        start = time.perf_counter()
        dataset = PackedDataset(
            path,
            options.rank,
            manifest.num_gpus,
            format=options.format,
            lockstep=manifest.lockstep != 1,
            loss_weights=FORMATS[options.format].takes_weights,
            cache_dir=cache_dir,
        )
        seconds = time.perf_counter() - start
        with closing(dataset):  # Otherwise a prefetched shard may arrive while the folder is being removed.
            yield dataset, seconds


@contextmanager
def _cache(cache_dir: str | None) -> Iterator[Path]:
    parent = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-loader-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """When to stop: after a number of batches or seconds, but not before one batch."""

    num_batches: int | None = None
    seconds: float | None = None

    def is_reached(self, num_batches: int, seconds: float) -> bool:
        """Whether to stop after this many batches and seconds."""
        if self.num_batches is not None:
            return num_batches >= self.num_batches
        return self.seconds is None or seconds >= self.seconds


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Each list has one number per batch."""

    seconds: list[float] = field(default_factory=list)
    """Time spent waiting for the batch."""
    num_tokens: list[int] = field(default_factory=list)
    """Tokens of this rank's part, padding included."""


@dataclass(frozen=True)
class Repeated:
    """A sampler that repeats the given iterations."""

    iterations: Sequence[int]

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(self.iterations)


def time_reading(dataset: Any, iterations: Iterable[int], limit: Limit) -> Timings:
    """Read batches in this process.

    Args:
        dataset: a `PackedDataset`.
        iterations: the batches to read, until the limit; `Repeated` never ends by itself.
    """
    timings = Timings()
    clock = time.perf_counter
    began = clock()
    for i in iterations:
        start = clock()
        batch = dataset[i]
        timings.seconds.append(clock() - start)
        timings.num_tokens.append(count_tokens(batch))
        if limit.is_reached(len(timings.seconds), clock() - began):
            break
    return timings


def time_loader(loader: Iterable[Any], limit: Limit, at_end: Callable[[], None]) -> tuple[float, Timings]:
    """(seconds to the first batch, timings of those after it) of a DataLoader with workers.

    Args:
        at_end: called after the last batch, while the workers are still alive.
    """
    clock = time.perf_counter
    start = clock()
    batches = iter(loader)
    next(batches)
    first = clock() - start
    timings = Timings()
    start = began = clock()
    for batch in batches:
        now = clock()
        timings.seconds.append(now - start)
        timings.num_tokens.append(count_tokens(batch))
        if limit.is_reached(len(timings.seconds), now - began):
            break
        start = clock()
    at_end()
    return first, timings


MOST_BYTES = 256 * 2**20
"""Bytes of finished tensors; the batch that exceeds them is the last."""


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch of any format, each once, including those of its metadata and of a block mask."""
    found: dict[int, torch.Tensor] = {}
    _collect(batch, found)
    return list(found.values())


def _collect(value: Any, found: dict[int, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found[id(value)] = value
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, found)
        _collect(getattr(value, "metadata", None), found)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, found)
    elif hasattr(value, "as_tuple"):
        _collect(value.as_tuple(), found)


def count_tokens(batch: Any) -> int:
    """Tokens of this rank's part of a batch, or of a list of micro-batches, padding included."""
    if is_list_of_batches(batch):
        return sum(map(count_tokens, batch))
    # The longest int64 tensors have one number per token.
    return max((tensor.numel() for tensor in batch_tensors(batch) if tensor.dtype == torch.int64), default=0)


class Floor:
    """Finished batches, and copying them. Limit torch to one thread (`torch.set_num_threads`)."""

    def __init__(self, dataset: Any, iterations: Iterable[int]) -> None:
        self.iterations: list[int] = []
        """The iterations whose batches are finished."""
        self.finished: list[list[torch.Tensor]] = []
        self.num_bytes = 0
        for i in iterations:
            tensors = [tensor.clone() for tensor in batch_tensors(dataset[i])]
            self.iterations.append(i)
            self.finished.append(tensors)
            self.num_bytes += sum(tensor.nbytes for tensor in tensors)
            if self.num_bytes > MOST_BYTES:
                break
        self._copied: list[torch.Tensor] = []

    def copy(self, tensors: Iterable[torch.Tensor]) -> float:
        """Seconds to clone these; as in a training loop, the last copy is freed once the next exists."""
        clock = time.perf_counter
        start = clock()
        self._copied = [tensor.clone() for tensor in tensors]
        return clock() - start


def floor_seconds(dataset: Any, iterations: Iterable[int]) -> float:
    """Mean seconds to copy a batch of these iterations. Price: reads each twice, and copies it three times."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        floor = Floor(dataset, iterations)
        for tensors in floor.finished:
            floor.copy(tensors)
        total = 0.0
        batch = None
        for i, tensors in zip(floor.iterations, floor.finished, strict=True):
            batch = dataset[i]
            total += floor.copy(tensors)
        del batch
        return total / len(floor.iterations)
    finally:
        torch.set_num_threads(threads)
