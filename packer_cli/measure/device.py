"""The device: its clock, its peak memory, and running out of memory."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from packer_cli.errors import ConfigError


class Device:
    """A GPU; or the CPU, whose peak memory is counted as the bytes of all tensors that are alive at once.

    Under torchrun, all processes must make every call, which returns the same value in all of them but for `seconds`.
    """

    def __init__(self, name: str) -> None:
        """Parse `auto`, `cuda` or `cpu`; ConfigError if there is no GPU."""
        if name == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch sees no GPU here; give --device cpu to measure this CPU")
        is_gpu = name != "cpu" and torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if is_gpu else torch.device("cpu")
        if is_gpu:
            torch.cuda.set_device(self.device)

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU, not the CPU."""
        return self.device.type == "cuda"

    @property
    def name(self) -> str:
        """The GPU's name, or `CPU`."""
        return torch.cuda.get_device_name(self.device) if self.is_gpu else "CPU"

    @property
    def total_memory(self) -> int:
        """Bytes of the GPU, or of the machine."""
        if self.is_gpu:
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Run torch in one thread on a CPU meanwhile, so that a process's CPU time is the time that it computes."""
        num_threads = torch.get_num_threads()
        if not self.is_gpu:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)

    def median_seconds(self, work: Callable[[], Any], *, repeats: int) -> float:
        """Measure the median time of a call, after one to warm up."""
        work()
        return self.of_processes([self.seconds_together(work) for _ in range(repeats)])

    def seconds_together(self, work: Callable[[], Any]) -> float:
        """Measure as `seconds`; the processes begin together."""
        self._synchronize()
        if dist.is_initialized():
            dist.barrier()
        return self.seconds(work)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Measure the seconds of a call in this process: on a GPU until it is done, on a CPU the CPU time.

        CPU time leaves out other programs' turns and the wait for other processes. What gloo copies is in it.
        """
        self._synchronize()
        clock = time.perf_counter if self.is_gpu else time.process_time
        begin = clock()
        work()
        self._synchronize()
        return clock() - begin

    def of_processes(self, seconds: Sequence[float]) -> float:
        """Return the time of calls that all processes made: the greatest median of a process, on a CPU the mean.

        CPU times of equal work differ by chance, and the greatest would always be too long.
        """
        median = statistics.median(seconds)
        if self.is_gpu or not dist.is_initialized():
            return self.greatest(median)
        tensor = torch.tensor([median], dtype=torch.float64)
        dist.all_reduce(tensor)
        return float(tensor) / dist.get_world_size()

    def _synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def peak_bytes(self, work: Callable[[], Any], held: int) -> int | None:
        """Measure the peak bytes of a call; None if it ran out of memory.

        Args:
            held: bytes that the model held before the call, to which a CPU's count is added.
        """
        if self.is_gpu:
            self._free_memory()
            torch.cuda.reset_peak_memory_stats(self.device)
        peak = math.inf
        try:
            if self.is_gpu:
                work()
                self._synchronize()
                peak = torch.cuda.max_memory_allocated(self.device)
            else:
                with LiveBytes() as live:
                    work()
                peak = held + live.peak
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        if math.isinf(peak):  # Outside the handler, whose traceback would keep the tensors alive.
            self._free_memory()
        peak = self.greatest(peak)
        return None if math.isinf(peak) else int(peak)

    def _free_memory(self) -> None:
        """Free tensors held by garbage, and memory cached by the allocator."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def greatest(self, value: float) -> float:
        """Return the greatest of all processes' values."""
        if not dist.is_initialized():
            return value
        tensor = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory; on a CPU, only the message tells."""
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the live tensors that operators create; `peak` is the most at once.

    Does not see what a kernel allocates and frees internally. Price: some microseconds an operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = storage.nbytes()
                    self._now += storage.nbytes()
                    self.peak = max(self.peak, self._now)
                    weakref.finalize(storage, self._free, storage._cdata)
        return out

    def _free(self, key: int) -> None:
        self._now -= self._sizes.pop(key)
