"""A packed set for a different number of GPUs: new schedules and rank manifests over the same shards.

The schedules and rank manifests for one number of GPUs are a *generation*. The first is the plan's. Each change adds
a folder such as `ranks/rebalanced-001` and then replaces `hbpack.json`, the only file that says which generation is in
force. So a run that is killed leaves the set as it was, training on the old generation is not disturbed, and a loader
state of any generation can be resumed.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from packer_cli.commands.arguments import StrPath, takes
from packer_cli.commands.output_folder import locked_output
from packer_cli.commands.plan import predicted
from packer_cli.config import PlannedConfig, validate
from packer_cli.config.plan_options import Decisions
from packer_cli.config.resolve import build, require_plan
from packer_cli.config.set_options import RebalanceConfig
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.errors import ConfigError, FormatError, InputError
from packer_cli.files import fingerprint, remove_folder
from packer_cli.format.constants import PLAN_NAME, VALIDATION
from packer_cli.format.entries import Generation, Origin
from packer_cli.format.epochs import MAX_EPOCH, parse_state, repeat_order, state_of_trainer
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import OverallMetrics
from packer_cli.format.schema import generation_path
from packer_cli.format.versions import plan_base, set_at, version_beside
from packer_cli.plan.build import check_rest, rest_of_epoch
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.types import Int64Array, Plan, Schedule
from packer_cli.plan.figures import plan_stats
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.remote.path import as_path
from packer_cli.shards.manifest import is_of_plan, read_manifest, shared_replicas, write_epochs, write_manifest
from packer_cli.shards.own_store import open_own_store
from packer_cli.shards.plan_file import read_plan, read_plan_header, write_schedules
from packer_cli.shards.repair import generation_plan
from packer_cli.shards.versions import make_current
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.commands.option_types import RebalanceOptions

REBALANCE_VERSION = 1
SCHEDULES_NAME = "schedules.arrow"


@dataclass(frozen=True, kw_only=True)
class Rebalanced:
    """Result of `hbpack rebalance`."""

    output: str
    """The set's folder, as the user named it."""
    num_gpus: int
    """GPUs that train from now on."""
    first_epoch: int
    """Epoch in which training goes on."""
    first_step: int
    """Step with which training goes on."""
    num_iterations: int
    """Iterations left in the first epoch."""
    num_steps: int
    """Steps left in the first epoch."""
    overall: OverallMetrics
    """Figures of whole epochs from now on."""


@takes(RebalanceConfig)
def rebalance(path: StrPath, **options: Unpack[RebalanceOptions]) -> Rebalanced:
    """Adapt a packed set to another number of GPUs, from where training stopped, as `hbpack rebalance` does.

    Args:
        path: a packed set.
        options: see "Options of a rebalance"; `gpus` is required.

    Raises:
        HbpackError: an option is wrong or does not fit the set, or the set is damaged.
    """
    config = validate(RebalanceConfig, options)
    watch, folder, num_gpus = Stopwatch(), as_path(path), config.gpus
    if config.state is not None:
        stop = read_state(as_path(config.state))
    else:
        given = {"--from-step": config.from_step, "--epoch": config.epoch}
        name = next((f"{option} {value}" for option, value in given.items() if value is not None), "the start")
        stop = Stop(name=name, epoch=config.epoch, step=config.from_step)
    with locked_output(folder, has_plan=True):
        home = set_at(folder)
        before = read_manifest(home)
        manifest, is_new = deal(home, num_gpus, stop, config.global_tokens)
        make_current(folder, home, manifest, "rebalance")
    first = manifest.epochs[0]
    overall = manifest.metrics.overall
    done = Rebalanced(
        output=os.fspath(path),
        num_gpus=num_gpus,
        first_epoch=manifest.first_epoch,
        first_step=first.first_step,
        num_iterations=first.num_iterations,
        num_steps=first.num_steps,
        overall=overall,
    )
    where = f"epoch {manifest.first_epoch} from step {first.first_step} on"
    if not is_new:
        say(f"the set is for {counted(num_gpus, 'GPU')} already, {where}")
        return done
    say(
        f"dealt {where} to {counted(num_gpus, 'GPU')}: {counted(first.num_iterations, 'iteration')}, "
        f"{counted(first.num_steps, 'step')}; whole epochs have {counted(overall.num_iterations, 'iteration')}, "
        f"{counted(overall.num_steps, 'step')} ({watch})"
    )
    keeps_steps = validate(PlannedConfig, manifest.config.plan).planner.keeps_steps
    if not keeps_steps and manifest.planned.global_tokens is None and num_gpus != before.num_gpus:
        say(
            f"each iteration is one step, so a step holds {num_gpus / before.num_gpus:.3g} times the packs that it "
            "held; --global-tokens keeps its tokens"
        )
    return done


def deal(folder: Path, num_gpus: int, stop: Stop, global_tokens: int | None = None) -> tuple[Manifest, bool]:
    """Deal the rest of an epoch, and the epochs after it, to `num_gpus` GPUs, and the validation set with it.

    The version is read and written in its own folder; `make_current` makes the result the set's.

    If one of the two fails, both stay as they are. Price: O(packs log packs) and one pass over the plan; no shard is
    read.

    Args:
        global_tokens: tokens per step from now on; None keeps the current number.

    Returns:
        The current manifest, and whether this call wrote it.

    Raises:
        ConfigError, InputError: the number of GPUs or the stop does not fit the set.
        OutputError: the validation set cannot be written to.
        FormatError: the set is damaged, or the validation set is missing.
        PlanError: the new schedule broke an invariant, which is a bug.
    """
    sets_aside = read_manifest(folder).planned.sets_aside
    if sets_aside:
        read_manifest(folder / VALIDATION)  # It is there, before anything is written.
    dealt = {folder: _deal(folder, num_gpus, stop, global_tokens)}
    if sets_aside:
        dealt[folder / VALIDATION] = _deal(folder / VALIDATION, num_gpus, START)
    for own, (manifest, is_new) in [*dealt.items()][::-1]:
        if is_new:
            write_manifest(own, manifest)
        if is_new and own.name == VALIDATION:
            say(f"{VALIDATION}: dealt to {counted(num_gpus, 'GPU')}")
    return dealt[folder]


def _deal(folder: Path, num_gpus: int, stop: Stop, global_tokens: int | None = None) -> tuple[Manifest, bool]:
    """Write everything that `deal` writes, except the manifest."""
    manifest = read_manifest(folder)
    config = {**manifest.config.plan, "gpus": num_gpus}
    if global_tokens is not None:
        config["global_tokens"] = global_tokens
    options = validate(PlannedConfig, config)
    options.planner.require_gpus([group.layout for group in manifest.groups], num_gpus)
    if global_tokens is not None:
        if options.planner.keeps_steps:
            raise ConfigError(
                f"--global-tokens has no effect on a set of --strategy {options.strategy}, whose steps stay as they "
                "were planned; leave it out"
            )
        require_plan(options, {"global_tokens"})
    if _is_in_force(manifest, stop, config):
        return manifest, False
    plan, piece_loss = read_plan(folder / PLAN_NAME, check=True)
    header = read_plan_header(folder / PLAN_NAME)
    if not is_of_plan(manifest, header.fingerprint):
        raise FormatError(
            f"{str(folder / PLAN_NAME)!r} is not the plan of the shards beside it; run hbpack write, which writes them"
        )
    source = _generation(manifest, stop, folder)
    origin, left = _remaining(folder, manifest, plan, source, stop)
    request = build(options).request
    own_fingerprint = fingerprint(asdict(origin), config, REBALANCE_VERSION)
    if own_fingerprint == manifest.fingerprint:
        return manifest, False
    schedules = _schedules(plan, origin, left, request)
    dealt = replace(plan, num_gpus=num_gpus)
    whole = schedules[1:] if origin.step else schedules
    check_plan(replace(dealt, epochs=tuple(whole)))
    check_rest(dealt, schedules[0], left, num_gpus)
    dealt = predicted(replace(dealt, epochs=tuple(schedules)), options)
    path = generation_path(len(manifest.history) + 1)
    remove_folder(folder / path)  # Left by a killed run; nothing refers to it.
    file = write_schedules(folder, f"{path}/{SCHEDULES_NAME}", dealt, own_fingerprint, origin.epoch)
    first, *others = write_epochs(folder, path, origin.epoch, dealt, piece_loss, own_fingerprint)
    sources = None  # The token store may be gone, or may have changed.
    with suppress(InputError, FormatError):
        sources = open_own_store(folder, header).sources()
    new = replace(
        manifest,
        fingerprint=own_fingerprint,
        num_gpus=num_gpus,
        first_epoch=origin.epoch,
        epochs=(replace(first, first_step=origin.step), *others),
        replicas=shared_replicas(dealt),
        schedules=file,
        history=(*manifest.history, manifest.generation),
        origin=origin,
        metrics=plan_stats(replace(dealt, epochs=tuple(whole)), request, sources),
        config=replace(manifest.config, plan=config),
    )
    return new, True


def plan_in_force(folder: Path) -> Plan:
    """Read the plan of a packed set, with the schedules of the current generation; whole epochs only.

    Raises:
        InputError, FormatError: there is no such set, or it is damaged.
    """
    manifest = read_manifest(folder)
    plan, _ = read_plan(folder / PLAN_NAME, check=True)
    dealt = generation_plan(folder, manifest.generation, plan)
    whole = [schedule for schedule, epoch in zip(dealt.epochs, manifest.epochs, strict=True) if epoch.first_step == 0]
    return replace(dealt, epochs=tuple(whole))


def _is_in_force(manifest: Manifest, stop: Stop, config: Decisions) -> bool:
    """Whether the current generation is the requested one, and training has run none of it."""
    start = (manifest.fingerprint, manifest.first_epoch, manifest.epochs[0].first_step, 0)
    wanted = (stop.fingerprint, stop.epoch, stop.step, stop.iteration)
    return config == manifest.config.plan and all(
        given in (None, own) for given, own in zip(wanted, start, strict=True)
    )


def _generation(manifest: Manifest, stop: Stop, folder: Path) -> Generation:
    """Find the generation that training read."""
    if stop.fingerprint is None:
        return manifest.generation
    known = {generation.fingerprint: generation for generation in manifest.generations}
    if stop.fingerprint in known:
        return known[stop.fingerprint]
    planned = stop.planned_fingerprint  # None: of no state.
    if planned and (other := version_beside(folder, planned, folder.parent)):
        raise InputError(f"{stop.name} is of {other!r}, not of the current version; run hbpack restore {other} first")
    raise InputError(
        f"{stop.name} is of the packed set {stop.fingerprint}, and {str(plan_base(folder))!r} is and was "
        f"{', '.join(reversed(known))}; name the folder that the run read"
    )


def _remaining(
    folder: Path, manifest: Manifest, plan: Plan, source: Generation, stop: Stop
) -> tuple[Origin, Int64Array]:
    """Find the place where training left a generation, and the packs (int64[r]) of the epoch that it has not run."""
    epoch = source.first_epoch if stop.epoch is None else stop.epoch
    entry, is_written = source.find_epoch(epoch, f"{stop.name}: epoch")
    schedule = generation_plan(folder, source, plan).epochs[source.epochs.index(entry)]
    first_step = entry.first_step
    order = None if is_written else repeat_order(manifest.seed, epoch, schedule.num_steps)
    num_steps = first_step + schedule.num_steps
    step = first_step if stop.step is None else stop.step
    if not first_step <= step <= num_steps:
        raise ConfigError(
            f"{stop.name}: step {step} of epoch {epoch} is not there; on {source.num_gpus} GPUs the epoch has steps "
            f"{first_step} to {num_steps - 1}, and {num_steps} is its end"
        )
    packs, iteration = rest_of_epoch(schedule, step - first_step, order)
    if stop.iteration is not None and stop.iteration != iteration:
        _, end = rest_of_epoch(schedule, min(step - first_step + 1, schedule.num_steps), order)
        raise InputError(_why_inside(stop, stop.iteration, step, iteration, end))
    if step == num_steps:
        # The epoch is over, so the whole next one is left.
        if epoch == MAX_EPOCH:
            raise ConfigError(f"{stop.name}: epoch {epoch} was the last one; choose an earlier place")
        epoch, step, iteration, packs = epoch + 1, 0, 0, np.arange(len(plan.packs))
    return Origin(fingerprint=source.fingerprint, epoch=epoch, step=step, iteration=iteration), packs


def _why_inside(stop: Stop, at: int, step: int, iteration: int, end: int) -> str:
    """Say why GPUs cannot change at an iteration, where the step begins with another one."""
    if not iteration < at < end:
        return (
            f"{stop.name}: iteration {at} is not in step {step}, which has {iteration} to {end - 1}; "
            "it was changed or is of another packed set"
        )
    return (
        f"{stop.name} is inside step {step} (iterations {iteration} to {end - 1}, {at} comes next), and "
        "GPUs can change only between two steps; save the state after a step's last batch, or give --from-step "
        f"{step}, which runs {counted(at - iteration, 'iteration')} again"
    )


def _schedules(plan: Plan, origin: Origin, left: Int64Array, request: PlanRequest) -> list[Schedule]:
    """Schedule the rest of the epoch and the whole epochs after it: as many as requested, at least one."""
    steps = request.steps
    curriculum = max(0, steps.curriculum_steps - origin.step) if origin.epoch == 0 else 0
    dealt = replace(request, steps=replace(steps, curriculum_steps=curriculum))
    every = np.arange(len(plan.packs))
    stop = max(request.epochs, origin.epoch + (2 if origin.step else 1))
    with request.strategy.blamed():
        return [
            request.strategy.rest(plan, left if epoch == origin.epoch else every, dealt, epoch)
            for epoch in range(origin.epoch, stop)
        ]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Place where a run stopped."""

    name: str
    """Name of the state or option that gave the place, for messages."""
    fingerprint: str | None = None
    """Generation that the run read; None for the one in force."""
    planned_fingerprint: str | None = None
    """Version that the run read."""
    epoch: int | None = None
    """Epoch in which the run stopped; None for the first of the generation."""
    step: int | None = None
    """First step, counted through the epoch, that was not run; None for the first of the generation."""
    iteration: int | None = None
    """First iteration that was not run; None for the one with which the step begins."""


START = Stop(name="the start")


def read_state(path: Path) -> Stop:
    """Read the state of a loader (`PackedDataset.state_dict`), saved as JSON.

    Raises:
        InputError: the file cannot be read, or is no such state.
    """
    name = f"--state {str(path)!r}"
    try:
        state = parse_state(state_of_trainer(json.loads(path.read_bytes())), name)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}; name a file that holds ds.state_dict()") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not JSON ({error}); save ds.state_dict() with json.dump") from None
    except FormatError as error:
        raise InputError(str(error)) from None
    return Stop(name=name, **asdict(state))
