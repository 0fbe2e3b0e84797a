"""Decides which settings to measure and in which order, and builds the profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from packer_cli.config.gpu_model import read_shape
from packer_cli.config.profile_options import ProfileConfig
from packer_cli.cost.analytic import Assumptions, gathered_bytes
from packer_cli.cost.fit_profile import fit_profile, search_checkpoint_layers
from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.loader.parallel import SPGroups, init_sp_groups
from packer_cli.measure.device import Device, is_out_of_memory
from packer_cli.measure.kernels import RowAttention, choose_kernel, measure_attention, split_evenly
from packer_cli.measure.subject import Subject
from packer_cli.sizes import counted

Say = Callable[[str], None]


def measure_profile(options: ProfileConfig, say: Say = lambda text: None) -> Profile:
    """Measure, and fit if there are enough rows; if not, `measured_model` says why.

    Under torchrun, all processes must call it; it returns the same in each.

    Rows are timed in rounds, each row once a round, so that what slows the machine for a while slows all alike.

    Price: for each length and degree, two to five iterations to find the layers, and `warm_up + repeats` for each kind
    of row; minutes for lengths up to 128k.

    Raises:
        ConfigError: an option does not fit the model, the GPUs or the other options.
        InputError: the model's config cannot be read.
    """
    shape = read_shape(options.model)
    if options.dtype is not None:
        shape = replace(shape, dtype=options.dtype)
    device = Device(options.device)
    with _processes(device) as world_size, device.one_thread():
        gpus = options.gpus or world_size
        degrees = options.sp or shape.sp_sizes(world_size)
        _check(options, shape, world_size)
        groups = SPGroups(rank=0, world_size=1, groups={})
        if world_size > 1:
            groups = init_sp_groups({Layout(sp=degree): range(0, world_size, degree) for degree in degrees})
        is_sharded = options.weights == "sharded"
        kernel_name, kernel = choose_kernel(options.attention, device.device)
        subject = Subject(
            Path(options.model),
            shape,
            options.modelling,
            RowAttention(kernel),
            device.device,
            chunked_logits=options.logits == "chunked",
            shard=is_sharded,
        )
        subject.run((max(degrees) * 16,), 0)  # From here on, the gradients exist.
        # The same in every process: all must take the same branches, or they deadlock.
        state = Assumptions().state_bytes * subject.num_parameters / (gpus if is_sharded else 1)
        state -= device.greatest(subject.held_bytes)
        if is_sharded and gpus > 1 == world_size:
            state += gathered_bytes(shape)
        total = -device.greatest(-device.total_memory)  # The least of any process.
        limit = options.memory or int(total * (1 - Assumptions().memory_reserve))
        run = _Run(options, device, subject, groups, limit=limit - state, num_layers=shape.num_layers, say=say)
        settings = [(length, degree) for length in sorted(set(options.lengths)) for degree in sorted(set(degrees))]
        timings = [timing for length, degree in settings for timing in run.timings(length, degree)]
        say(f"timing {counted(len(timings), 'kind')} of rows, in {options.warm_up + options.repeats} rounds")
        run.time(timings)
        rows = [run.row(timing) for timing in timings]
        say("the attention kernel alone")
        pieces = measure_attention(device, kernel, shape, max(options.lengths), options.repeats)
    assumed: dict[str, Any] = {
        "constant_bytes_added": round(state),
        "state_bytes": Assumptions().state_bytes,
        "attention": kernel_name,
        **{name: getattr(options, name) for name in ("modelling", "logits", "weights")},
        **dict(zip(("bandwidth", "network_bandwidth"), options.bandwidth or (), strict=False)),
    }
    if not device.is_gpu:
        assumed["device"] = "CPU: the times are not those of a GPU; memory is counted, not measured"
    profile = Profile(
        model=asdict(shape),
        gpu=device.name,
        num_gpus=gpus,
        num_measured=None if gpus == world_size else world_size,
        memory_limit=limit,
        iterations=tuple(rows),
        pieces=tuple(pieces),
        assumed=assumed,
        library_versions={"torch": torch.__version__},
    )
    return with_fits(profile, say)


def with_fits(profile: Profile, say: Say) -> Profile:
    """Add the models fitted to its rows to a profile; return it unchanged if there are too few."""
    try:
        cost, memory = fit_profile(profile)
    except ConfigError:
        return profile
    for note in (*cost.notes, *memory.notes):
        say(note)
    return profile.model_copy(update={"cost": cost.fit, "memory": memory.fit})


@dataclass
class _Timing:
    """A kind of row, with what was measured."""

    length: int
    sp_size: int
    layers: int
    """Checkpointed."""
    num_samples: int
    peak: float | None = None
    """Bytes; None if not measured, or out of memory."""
    fits: bool = True
    """Whether it is to be timed; set to False when it runs out of memory."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of the runs in this process."""


class _Run:
    """Measures the rows of all lengths and SP degrees."""

    def __init__(
        self, options: ProfileConfig, device: Device, subject: Subject, groups: SPGroups, *,
        limit: float, num_layers: int, say: Say,
    ) -> None:  # fmt: skip
        self._options, self._device, self._subject, self._groups = options, device, subject, groups
        self._limit, self._num_layers, self._say = limit, num_layers, say

    def timings(self, length: int, sp_size: int) -> list[_Timing]:
        """List rows of one length and SP degree: one sample and several, the fewest checkpointed layers and all."""
        if length % sp_size:
            self._say(f"rows of {length} tokens cannot be split over {sp_size} GPUs: skipped")
            return []
        peaks: dict[int, float | None] = {}
        if self._options.checkpoint_layers is None:
            least, peaks = search_checkpoint_layers(
                lambda layers: self._peak(length, sp_size, layers), self._num_layers, self._limit
            )
            settings = [] if least is None else sorted({least, self._num_layers})
        else:
            settings = sorted(set(self._options.checkpoint_layers))
            peaks = {layers: self._peak(length, sp_size, layers) for layers in settings}
            settings = [layers for layers in settings if (peaks[layers] or self._limit + 1) <= self._limit]
            least = settings[0] if settings else None
        self._say(
            f"{length} tokens on {counted(sp_size, 'GPU')}: "
            + ("do not fit" if least is None else f"fit with {least} of {self._num_layers} layers checkpointed")
        )
        fewest = min(self._options.samples)
        # Keep a peak without a time too: it helps to fit the memory.
        timings = [
            _Timing(length, sp_size, layers, fewest, peak, fits=False)
            for layers, peak in sorted(peaks.items())
            if layers not in settings
        ]
        for num_samples in self._options.samples:
            if num_samples > length:
                self._say(f"rows of {length} tokens cannot hold {num_samples} samples: skipped")
        return timings + [
            _Timing(length, sp_size, layers, num_samples, peaks[layers] if num_samples == fewest else None)
            for layers in settings
            for num_samples in self._options.samples
            if num_samples <= length
        ]

    def time(self, timings: Sequence[_Timing]) -> None:
        """Run each row that fits once a round; the first rounds warm up."""
        for number in range(self._options.warm_up + self._options.repeats):
            for timing in timings:
                seconds = self._seconds(timing) if timing.fits else None
                if seconds is None:
                    timing.fits = False
                elif number >= self._options.warm_up:
                    timing.seconds.append(seconds)

    def row(self, timing: _Timing) -> IterationRow:
        """Make the record of a row."""
        seconds = self._device.of_processes(timing.seconds) if timing.fits else None
        peak = timing.peak
        return IterationRow(
            length=timing.length,
            sp_size=timing.sp_size,
            checkpoint_layers=timing.layers,
            seconds=seconds,
            tokens=timing.length * self._groups.world_size // timing.sp_size,
            work=sum(size**2 for size in split_evenly(timing.length, timing.num_samples)),
            memory_bytes=None if peak is None else int(peak),
            out_of_memory=seconds is None and (peak is None or peak > self._limit),
        )

    def _group(self, sp_size: int) -> dist.ProcessGroup | None:
        layout = Layout(sp=sp_size)
        return self._groups.for_batch({**layout.sizes, **layout.place(self._groups.rank % sp_size)._asdict()})

    def _peak(self, length: int, sp_size: int, layers: int) -> float | None:
        samples, group = split_evenly(length, min(self._options.samples)), self._group(sp_size)
        return self._device.peak_bytes(lambda: self._subject.run(samples, layers, group), self._subject.held_bytes)

    def _seconds(self, timing: _Timing) -> float | None:
        """Measure the seconds of one run in this process; None if it ran out of memory."""
        samples, group = split_evenly(timing.length, timing.num_samples), self._group(timing.sp_size)
        try:
            return self._device.seconds_together(lambda: self._subject.run(samples, timing.layers, group))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        return None


def _check(options: ProfileConfig, shape: ModelShape, world_size: int) -> None:
    possible = shape.sp_sizes(world_size)
    for degree in options.sp or ():
        if degree not in possible:
            remedy = "run it under torchrun with more processes" if degree > world_size else "choose one of them"
            raise ConfigError(
                f"--sp: degree {degree} cannot be measured: {world_size} process(es) and the model's heads allow "
                f"{', '.join(map(str, possible))}; {remedy}, or give --bandwidth"
            )
    most = max(options.checkpoint_layers or (0,))
    if most > shape.num_layers:
        raise ConfigError(f"--checkpoint-layers: the model has {shape.num_layers} layers, got {most}")
    fewest, shortest = min(options.samples), min(options.lengths)
    if fewest > shortest:
        raise ConfigError(
            f"--samples: a row of {shortest} tokens (--lengths) cannot hold {fewest} samples; give fewer samples, or "
            "longer lengths"
        )
    if options.gpus and options.gpus % world_size:
        raise ConfigError(
            f"--gpus must be a multiple of the {world_size} GPUs that measure, got {options.gpus}; give "
            f"{-(-options.gpus // world_size) * world_size}"
        )


@contextmanager
def _processes(device: Device) -> Iterator[int]:
    """Join torchrun's processes, and yield their number; 1 without torchrun."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1:
        yield 1
        return
    dist.init_process_group("nccl" if device.is_gpu else "gloo", timeout=timedelta(minutes=10))
    try:
        yield world_size
    finally:
        dist.destroy_process_group()
