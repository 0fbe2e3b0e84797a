"""`--groups auto` and `hbpack groups`: choose groups for lengths, and record the choice, with its candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from packer_cli.config import PlanConfig
from packer_cli.config.gpu_model import load_models
from packer_cli.config.groups import write_parallel
from packer_cli.config.resolve import resolve
from packer_cli.cost.predict import GpuModel
from packer_cli.cost.profile import Profile
from packer_cli.errors import ConfigError, RunError
from packer_cli.files import fingerprint
from packer_cli.format.metrics import HBP, AlternativeGroups, GroupChoice
from packer_cli.groups.choice import FEW, LONGEST, NOT_WORTH_A_GROUP, Choice, choose_groups, choose_measured_groups
from packer_cli.groups.settings import Setting, Way, best_settings, ways
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import UNLIMITED, Group, Overflow
from packer_cli.plan.core.types import Int32Array, Pieces
from packer_cli.plan.notes import describe_overflow
from packer_cli.plan.strategies.protocol import digits
from packer_cli.simulate.epoch import simulate
from packer_cli.sizes import four_digits

_MOST_PLANNED, _FEWEST_PLANNED = 1_000_000, 100_000
"""Samples; of more, every so many-th is planned. The most are divided among the ways to run replicas."""
_NEAR = 1.1
"""Times the least estimate, up to which a way is planned."""
_SAME = 0.001
"""A plan may differ by this share from what was estimated, and nothing is said."""


def _planned_seconds(
    config: PlanConfig, model: GpuModel, lengths: Int32Array, most: int
) -> Callable[[Sequence[Group]], float]:
    """Make a function that predicts the first epoch's time (s) with the groups that a strategy uses, planned once
    each.

    Args:
        config: with any groups.
        lengths: int32[n], n > 0.
        most: samples to plan.
    """
    some = lengths[:: -(-len(lengths) // most)].copy()
    scale = int(lengths.sum(dtype=np.int64)) / int(some.sum(dtype=np.int64))
    pieces = Pieces(samples=None, start=np.zeros(len(some), dtype=np.int32), length=some)
    of_lengths = config.for_unit("sample")
    known: dict[tuple[Group, ...], float] = {}

    def seconds(groups: Sequence[Group]) -> float:
        request = resolve(of_lengths.with_groups(groups)).request
        if request.groups not in known:
            plan = build_plan(pieces, replace(request, epochs=1))
            known[request.groups] = simulate(plan, model).seconds * scale
        return known[request.groups]

    return seconds


def choose(config: PlanConfig, lengths: Int32Array) -> tuple[Choice, GroupChoice]:
    """Choose groups for the lengths (int32[n]) of an epoch. Returns the choice and its record.

    Raises:
        UsageError: options are missing or contradict each other, or the longest sample does not fit.
        RunError: there are no lengths.
    """
    model, profile = load_models(config, "--groups auto")
    num_long = 0 if config.max_length is None else int(np.count_nonzero(lengths > config.max_length))
    lengths = bounded(config, lengths)
    if not len(lengths):
        raise RunError("there is nothing to plan: no sample is left; add data, or raise --max-length")
    if model is None:
        assert profile is not None
        choice = choose_measured_groups(profile, lengths, config.gpus, config.max_length)
        choice = replace(choice, lockstep=config.lockstep)
    else:
        choice = _choose_way(config, model, profile, lengths)
    lost = describe_overflow(num_long, config.max_length or 0, config.overflow)
    return choice, _record(config, model, profile, choice, lengths, [lost] if lost else [])


def _choose_way(config: PlanConfig, model: GpuModel, profile: Profile | None, lengths: Int32Array) -> Choice:
    """Choose the groups of the fastest way to run replicas, and of ways that are as fast, of the simplest.

    Every way has an estimate; those near the best are planned.
    """
    found, why = list[tuple[float, partial[Choice], partial[Callable[[Sequence[Group]], float]], Way]](), None
    able = ways(config, model)
    for way in able if config.used_algorithm == "search" else islice(able, 1):
        own, replicas = config.model_copy(update={"lockstep": way.lockstep}), model.of_lockstep(way.lockstep)
        search = partial(choose_groups, replicas, lengths, config, layouts=way.layouts, profile=profile)
        of_plans = partial(_planned_seconds, own, replicas, lengths)
        is_planned = len(lengths) <= FEW and not config.planner.finds_layouts
        try:
            first = search(planned=of_plans(FEW) if is_planned else None)
            found.append((first.seconds or 0.0, search, of_plans, way))
        except ConfigError as error:
            why = why or error
    if not found:
        raise why or ConfigError(f"--trainer {config.trainer}: it can run no layout; name more of what it can do")
    if config.planner.finds_layouts:
        return replace(found[0][1](), lockstep=config.lockstep)
    least = min(seconds for seconds, *_ in found)
    near = [each for each in found if each[0] <= least * _NEAR]
    most = max(_FEWEST_PLANNED, _MOST_PLANNED // len(near))
    choices = []
    for _, search, of_plans, way in near:
        try:
            choice = search(planned=of_plans(most), tried=of_plans(_FEWEST_PLANNED // 4))
        except ConfigError as error:  # The strategy cannot plan so.
            why = why or error
            continue
        choices.append(replace(choice, lockstep=way.lockstep))
    if why is not None and not choices:
        raise why
    shortest = min(choice.seconds or 0.0 for choice in choices)
    return next(choice for choice in choices if (choice.seconds or 0.0) <= shortest * (1 + NOT_WORTH_A_GROUP))


def groups_for(config: PlanConfig, lengths: Int32Array) -> tuple[PlanConfig, GroupChoice | None]:
    """Put groups in place of `auto` in the options for the lengths (int32[n]); return the record, too, None without a
    choice."""
    if not len(bounded(config, lengths)):
        # There is nothing to plan; the planner reports why.
        return config.with_groups((Group(capacity=config.max_length or 1024),)), None
    if "a stream" in config.planner.needs:
        # The context window of a stream: its longest sample, in rows that all ranks can share evenly.
        multiple = 2 * config.layout.row_multiple
        longest = min(int(lengths.max()), config.max_length or UNLIMITED)
        return config.with_groups((Group(capacity=-(-longest // multiple) * multiple),)), None
    choice, record = choose(config, lengths)
    chosen = config.with_groups(choice.groups)
    if choice.lockstep == config.lockstep:
        return chosen, record
    # It was not given: other strategies have their own.
    found = chosen.model_copy(update={"lockstep": choice.lockstep})
    found.model_fields_set.discard("lockstep")
    return found, record


def bounded(config: PlanConfig, lengths: Int32Array) -> Int32Array:
    """Cut or drop the lengths over `max_length`."""
    if config.max_length is None:
        return lengths
    # The planner raises the error of `--overflow error`, with file and line.
    cut: Overflow = "drop" if config.overflow == "error" else config.overflow
    return make_pieces(lengths, None, config.max_length, cut).length


def _record(
    config: PlanConfig,
    model: GpuModel | None,
    profile: Profile | None,
    choice: Choice,
    lengths: Int32Array,
    notes: list[str],
) -> GroupChoice:
    of_rows = {"source": "profile", "model": dict(profile.model), "gpu": profile.gpu} if profile else {}
    origin = dict(model.origin) if model else of_rows
    facts = [asdict(model.cost), asdict(model.memory), model.sp_sizes] if model else []
    rows = profile.model_dump(mode="json") if profile else None
    return GroupChoice(
        groups=",".join(map(str, choice.groups)),
        algorithm=config.used_algorithm,
        max_groups=config.max_groups,
        max_length=config.max_length,
        parallel=write_parallel(choice.groups[0].layout) or None,
        lockstep=choice.lockstep,
        gpus=config.gpus,
        samples=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        longest=int(lengths.max()),
        seconds=choice.seconds and digits(choice.seconds),
        gpu_hours=choice.seconds and digits(choice.seconds * config.gpus / 3600),
        notes=(*notes, *origin.get("notes", ()), *_notes(choice, profile, config.gpus)),
        alternatives=tuple(
            AlternativeGroups(
                name=each.name,
                groups=",".join(map(str, each.groups)),
                seconds=digits(each.seconds),
                gain=round(each.seconds / choice.seconds - 1, 6),
            )
            for each in choice.alternatives
            if choice.seconds
        ),
        predicted_with=origin,
        fingerprint=fingerprint(*facts, rows),
    )


def _notes(choice: Choice, profile: Profile | None, num_gpus: int) -> list[str]:
    notes = []
    if profile is not None and profile.num_gpus != num_gpus:
        notes.append(
            f"the profile is of {profile.num_gpus} GPUs that share the weights; on {num_gpus} each one's share "
            "takes another part of its memory"
        )
    if choice.seconds is None:
        notes.append("the profile's rows are too few to predict an epoch; hbpack profile says what to measure")
    elif choice.estimated is not None and abs(choice.seconds / choice.estimated - 1) > _SAME:
        notes.append(
            f"seconds are of plans; the estimate that found these groups was {four_digits(choice.estimated)} s, "
            f"{choice.estimated / choice.seconds - 1:+.1%}"
        )
    return notes


def describe(choice: GroupChoice) -> str:
    """Describe a recorded choice in one line."""
    if choice.seconds is None:
        return f"chose {choice.options} by HBP's algorithm 1 from the rows of the profile"
    others = "".join(
        f"; {each.name} ({each.groups}) {each.gain:+.1%}"
        for each in choice.alternatives
        if each.name in (HBP, LONGEST) and each.groups != choice.groups
    )
    seconds = four_digits(choice.seconds)
    return f"chose {choice.options}: {seconds} s an epoch predicted on {choice.gpus} GPUs{others}"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A length and an SP degree that were tried."""

    length: int
    """Tokens of a row."""
    sp_size: int
    """SP degree of a replica."""
    checkpoint_layers: int
    """Layers whose activations are computed again."""
    seconds: float | None
    """Seconds of an iteration; None if it does not fit."""
    seconds_per_token: float | None
    """Seconds that all GPUs take for a token; None if it does not fit."""
    memory_bytes: float | None
    """Memory of a GPU; None if it was not measured."""
    fits: bool
    """Whether it fits into a GPU's memory."""
    measured: bool
    """Whether the figures are measured, and not predicted."""
    mark: str
    """`best`, `best of its length`, `chosen`, `best, chosen` and so on, or empty."""


@dataclass(frozen=True, kw_only=True)
class FoundGroups(GroupChoice):
    """The choice, with what it was made from."""

    candidates: tuple[Candidate, ...]
    """All that were tried, by length and SP degree."""


def found_groups(choice: Choice, record: GroupChoice) -> FoundGroups:
    """Join the record of a choice with its candidates: one per length and SP degree, by length."""
    best = best_settings(choice.settings)
    fastest = min(best.values(), key=lambda setting: setting.speed)

    def candidate(setting: Setting) -> Candidate:
        group = setting.group
        is_best = setting is best.get(group.capacity)
        marks = ["best" if setting is fastest else "best of its length"] if is_best else []
        return Candidate(
            length=group.capacity,
            sp_size=group.sp_size,
            checkpoint_layers=group.checkpoint_layers,
            seconds=setting.seconds,
            seconds_per_token=setting.seconds_per_token,
            memory_bytes=setting.memory_bytes,
            fits=setting.seconds is not None,
            measured=setting.is_measured,
            mark=", ".join([*marks, "chosen"] if group in choice.groups else marks),
        )

    settings = [setting for length in sorted(choice.settings) for setting in choice.settings[length]]
    return FoundGroups(**vars(record), candidates=tuple(map(candidate, settings)))
