"""Candidate lengths, each with the degrees and checkpointed layers that fit in memory; and the ways to run replicas.

Ways are the degrees and the synchronization that a trainer can do, and that these GPUs have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from packer_cli.config.plan_options import PlanConfig
from packer_cli.cost.predict import GpuModel
from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.errors import ConfigError
from packer_cli.format.layout import DEGREES, Layout
from packer_cli.groups.estimate import LengthSums
from packer_cli.plan.core.groups import Group

SHORTEST_HBP = 8192
"""The shortest candidate of HBP's algorithm 1, before it divides lengths by SP degrees."""
LONGEST_HBP = 131072
"""Candidates reach this length even if no sample does: rows may be longer than any sample."""
_PARTS = range(8, 16)
"""Eighths of an octave. All candidates are multiples of 128, from 2K on of 256, so SP degrees divide them."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A length, and one way to run its rows."""

    group: Group
    """Length, SP degree, checkpointed layers."""
    seconds: float | None
    """Time of an iteration in which every SP group runs one row; None if it does not fit or was not measured."""
    seconds_per_token: float | None
    """Iteration time divided by the tokens of all GPUs together."""
    memory_bytes: float | None
    """Bytes per GPU; None if not measured."""
    is_measured: bool
    """Whether the figures are measured rather than predicted."""

    @property
    def speed(self) -> float:
        """`seconds_per_token` of one that fits."""
        assert self.seconds_per_token is not None
        return self.seconds_per_token


def candidate_lengths(longest: int, sp_sizes: Iterable[int], max_length: int | None) -> list[int]:
    """List lengths that the search may choose, increasing: eight per octave from 1K, and HBP's l / sp; up to
    `max_length`.

    Of the samples, they depend only on the longest, and only if it is over 128K: then on its octave.
    """
    top = max(hbp_lengths(longest)[-1], LONGEST_HBP)
    grid = {part << shift for shift in range(7, 31) for part in _PARTS if part << shift <= top}
    grid |= {length // sp for length in hbp_lengths(top) for sp in sp_sizes if length >= sp}
    if max_length is None or max_length >= top:
        return sorted(grid)
    return sorted({length for length in grid if length < max_length} | {max_length})


def hbp_lengths(longest: int) -> list[int]:
    """List the powers of two from 8K up to what the data needs.

    >>> hbp_lengths(20_000)
    [8192, 16384, 32768]
    """
    lengths = [SHORTEST_HBP]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return lengths


def settings_of(model: GpuModel, length: int, layouts: Sequence[Layout]) -> list[Group]:
    """Make a group for each layout that fits, with the fewest checkpointed layers."""
    groups = []
    for layout in layouts:
        layers = model.memory.least_checkpoint_layers(length, layout)
        if layers is not None:
            groups.append(Group(capacity=length, checkpoint_layers=layers, **layout.sizes))
    return groups


def predicted_settings(
    model: GpuModel, lengths: Iterable[int], layouts: Sequence[Layout], num_gpus: int, sums: LengthSums
) -> dict[int, list[Setting]]:
    """Predict settings by length with `model`, including layouts that do not fit.

    Rows are assumed full of samples in the mix of those no longer than the row. In HBP's table 19, time per token
    hardly grows with the length. With one sample per row it would grow, and no long row would ever be best.
    """
    return {
        length: [_predict(model, length, layout, sums.density_up_to(length) * length, num_gpus) for layout in layouts]
        for length in lengths
    }


def _predict(model: GpuModel, length: int, layout: Layout, work: float, num_gpus: int) -> Setting:
    """Predict a setting with the fewest checkpointed layers that fit, or with all of them if none do."""
    least = model.memory.least_checkpoint_layers(length, layout)
    layers = model.memory.num_layers if least is None else least
    seconds = None if least is None else float(model.cost.seconds(work, length, layout, layers))
    return Setting(
        group=Group(capacity=length, checkpoint_layers=layers, **layout.sizes),
        seconds=seconds,
        seconds_per_token=None if seconds is None else seconds * layout.num_gpus / num_gpus / length,
        memory_bytes=model.memory.bytes(length, layout, layers),
        is_measured=False,
    )


def measured_settings(profile: Profile, num_gpus: int, sums: LengthSums) -> dict[int, list[Setting]]:
    """List measured settings by length, including settings that did not fit.

    A setting that was measured with several numbers of samples per row gets the time of a row with the data's work per
    token, on the line through the two rows nearest to it, because time is linear in work. One that was measured with
    one number of samples keeps its time.
    """
    scale = (profile.num_measured or profile.num_gpus) / num_gpus
    rows: dict[Group, list[IterationRow]] = {}
    for row in profile.iterations:
        if num_gpus % row.sp_size == 0:
            group = Group(capacity=row.length, sp_size=row.sp_size, checkpoint_layers=row.checkpoint_layers)
            rows.setdefault(group, []).append(row)
    settings: dict[int, list[Setting]] = {}
    for group, alike in rows.items():
        work = sums.density_up_to(group.capacity) * group.capacity
        settings.setdefault(group.capacity, []).append(_measured(group, alike, work, scale))
    return {length: settings[length] for length in sorted(settings)}


def _measured(group: Group, rows: Sequence[IterationRow], work: float, scale: float) -> Setting:
    """Make a setting of its rows, measured on `scale` times the plan's GPUs, for rows of that much attention work."""
    times = {
        row.work or row.length**2: (row.seconds, row.seconds / row.tokens * scale)
        for row in reversed(rows)  # The first of those with equal work counts.
        if not row.out_of_memory and row.seconds is not None
    }
    seconds, seconds_per_token = _at(work, times) if times else (None, None)
    return Setting(
        group=group,
        seconds=seconds,
        seconds_per_token=seconds_per_token,
        memory_bytes=max((row.memory_bytes for row in rows if row.memory_bytes is not None), default=None),
        is_measured=True,
    )


def _at(work: float, times: Mapping[int, tuple[float, float]]) -> tuple[float, float]:
    """Interpolate both times at `work`, on a line through the nearest two.

    Beyond the measured rows, noise may turn the line: less work takes at most the least one's time, and at least half
    of it, since linear work stays; more work takes at least the time of the most.
    """
    known = sorted(times)
    if len(known) == 1:
        return times[known[0]]
    i = min(max(bisect_left(known, work), 1), len(known) - 1)
    share = (work - known[i - 1]) / (known[i] - known[i - 1])
    seconds, per_token = (
        _bounded((1 - share) * before + share * after, before, after, share)
        for before, after in zip(times[known[i - 1]], times[known[i]], strict=True)
    )
    return seconds, per_token


def _bounded(value: float, before: float, after: float, share: float) -> float:
    if share < 0:
        return min(max(value, before / 2), before)
    return max(value, after) if share > 1 else value


def best_settings(settings: Mapping[int, Sequence[Setting]]) -> dict[int, Setting]:
    """Find the fastest setting of each length that fits, by increasing length.

    Each SP degree counts with its fewest checkpointed layers (HBP, algorithm 1).
    """
    best = {}
    for length in sorted(settings):
        fitting = [setting for setting in settings[length] if setting.seconds_per_token is not None]
        fitting.sort(key=lambda setting: setting.group.checkpoint_layers, reverse=True)
        fewest = {setting.group.sp_size: setting for setting in fitting}
        if fewest:
            best[length] = min(fewest.values(), key=lambda setting: (setting.speed, setting.group.sp_size))
    return best


MOST_STAGES = 8


class Way(NamedTuple):
    """One way to run replicas."""

    layouts: tuple[Layout, ...]
    """Layouts that groups of one plan may have; they differ in how they share rows."""
    lockstep: str


def ways(config: PlanConfig, model: GpuModel) -> Iterator[Way]:
    """Yield the ways to run a plan with these options that the trainer has, the simplest first, each with a layout.

    `--parallel` and `--lockstep` stay as they were given. Where stages or tensor parallelism keep weights, no
    micro-batch gathers them, and nothing but the end of a step makes replicas meet.

    Args:
        model: with weights gathered in every micro-batch.
    """
    model = model.of_lockstep(config.lockstep)
    able = config.abilities.union(name for name in DEGREES if getattr(config.layout, name) > 1)
    able -= frozenset() if config.max_path_tokens is None else {"cp"}  # It would divide what a token sees.
    is_fixed = "lockstep" in {*config.model_fields_set, *config.planner.ignores} or config.global_tokens is None
    for parallel in [config.layout] if config.parallel else _parallels(model, config.gpus, able):
        layouts = [each for each in model.layouts(config.gpus, parallel) if each.sp == 1 or "sp" in able]
        sets = [layouts] if "degrees" in able else [[each] for each in layouts]
        if "cp" in able and not config.parallel:  # `--parallel` gives it to all groups.
            sets += [[parallel._replace(cp=cp)] for cp in _powers(config.gpus // parallel.num_gpus)[1:]]
        known = (tuple(each for each in some if _is_known(model, each, config.gpus)) for some in sets)
        kinds = [config.lockstep]
        if not is_fixed:
            kinds = [str(model.shard_gpus or "all")] if "fsdp" in able and parallel.tp * parallel.pp == 1 else []
            kinds += ["1"] if "zero-1" in able else []
            kinds = kinds or [config.lockstep] * (config.parallel is not None)
        yield from (Way(some, kind) for some in known if some for kind in kinds)


def _parallels(model: GpuModel, num_gpus: int, able: frozenset[str]) -> Iterator[Layout]:
    """Yield degrees of TP and PP that divide the GPUs: powers of two, TP inside a node, a few stages."""
    links = None if model.shard_gpus else model.cost.model_parallel
    most_tp = links.gpus_per_node if links and "tp" in able else 1
    most_pp = MOST_STAGES if links and "pp" in able else 1
    for pp in _powers(min(most_pp, num_gpus)):
        for tp in _powers(min(most_tp, num_gpus // pp)):
            if num_gpus % (tp * pp) == 0:
                yield Layout(tp=tp, pp=pp)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def _is_known(model: GpuModel, layout: Layout, num_gpus: int) -> bool:
    with suppress(ConfigError):
        model.cost.require_known(layout)
        return (model.shard_gpus or num_gpus) % layout.num_gpus == 0
    return False
