"""The way from a token store to a checked plan, `plan.arrow`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from packer_cli.commands.output_folder import (
    config_of_plan,
    current_manifest,
    current_plan,
    locked_output,
    refuse_other,
    refuse_part,
    remove_validation,
    require_tokens,
)
from packer_cli.commands.plan_notes import (
    NothingToPlanError,
    counts_of,
    left_out,
    piece_loss_of,
    plan_notes,
    refuse_overflow,
    why_nothing,
)
from packer_cli.config import PlanConfig, PlannedConfig, StorePlanConfig, option_name, validate
from packer_cli.config.resolve import Resolved, load_model, require_plan, resolve, size_rule
from packer_cli.engine.local import available_memory
from packer_cli.engine.progress import Stopwatch, naming, say, warn
from packer_cli.errors import ConfigError, RunError
from packer_cli.files import fingerprint
from packer_cli.format.constants import PLAN_NAME, REJECTED_NAME, VALIDATION
from packer_cli.format.metrics import GroupChoice
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import Cut, Samples, require_pieces
from packer_cli.plan.core.types import Int32Array, Pieces, Plan
from packer_cli.plan.figures import plan_stats
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.plugins import OBJECT
from packer_cli.remote.path import relative_path
from packer_cli.shards.manifest import is_of_plan
from packer_cli.shards.plan_file import PLAN_VERSION, PlanHeader, write_plan
from packer_cli.sizes import counted
from packer_cli.tokens.index import INDEX_NAME, TOKENS, read_index
from packer_cli.tokens.rejects import write_rejected
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import open_store


def resolve_for(
    config: PlanConfig, samples: Samples, given: Collection[str] = ()
) -> tuple[Resolved, GroupChoice | None]:
    """Resolve the options, with groups in place of `auto`; return them, and a plan's record of that choice.

    Args:
        given: see `resolve`.
    """
    unit, choice = samples.unit if samples.num_samples else None, None
    if not config.groups:
        from packer_cli.groups.auto import groups_for  # Only `auto` needs the search.

        config = config.for_unit(unit)
        config, choice = groups_for(config, sizes_for(config, samples))
    return resolve(config, unit, given), choice


def sizes_for(config: PlanConfig, samples: Samples) -> Int32Array:
    """Return the capacity that samples or items of an epoch take (int32[m], tokens), for the choice of `auto` groups.

    Raises:
        ConfigError: an option does not go with items.
    """
    limits = resolve(config, samples.unit).request.limits if samples.unit == "item" else ()
    return samples.epoch_sizes(config.seed, limits)


def say_choice(choice: GroupChoice | None) -> None:
    """Print the groups that were chosen, if they were."""
    if choice is not None:
        from packer_cli.groups.auto import describe

        say(describe(choice))


def plan_cut(
    samples: Samples, resolved: Resolved, pieces_of: Callable[[Cut], Pieces] = require_pieces
) -> tuple[Plan, Cut]:
    """Plan samples, and check the plan; return the plan, and the samples' cut.

    Args:
        pieces_of: returns the pieces of a cut, or raises RunError with the reason why they cannot be planned.

    Raises:
        RunError: there is nothing to plan, or too much for the memory, or a sample is too long under
            `--overflow error`.
        PlanError: the plan broke an invariant, which is a bug.
    """
    request = resolved.request
    of_each = (request.strategy.sample_bytes or request.algorithm.bytes_a_sample) + _ITEM_BYTES * bool(request.limits)
    require_memory(samples.num_wanted, of_each)
    cut = samples.cut(size_rule(resolved.config), request.seed)
    plan = build_plan(pieces_of(cut), request)
    cut.check(plan.pieces)  # The packing may have cut them.
    check_plan(plan)
    _say_short_curriculum(plan, request)
    return plan, cut


def _say_short_curriculum(plan: Plan, request: PlanRequest) -> None:
    """Print a line if the first steps could not all be short, see `StepRules.curriculum_share`."""
    rules, schedule = request.steps, plan.epochs[0]
    if not rules.curriculum_steps or rules.curriculum_share == 1 or len(plan.groups) == 1:
        return
    is_long = schedule.slot_group == len(plan.groups) - 1
    num_short = int(schedule.iteration_step[schedule.slot_iteration[is_long]].min(initial=schedule.num_steps))
    if num_short < min(rules.curriculum_steps, schedule.num_steps):
        say(
            f"the curriculum takes {counted(num_short, 'step')}, not {rules.curriculum_steps}: "
            f"{rules.curriculum_share:.0%} of the short iterations, so that the others mix with the long ones"
        )


def with_gpu_model(resolved: Resolved, config: PlanConfig) -> Resolved:
    """Add the model that predicts steps, which the given options name, to the resolved ones.

    A model that cannot predict is left out, with a line that says so.

    Raises:
        ConfigError, InputError: options are missing, contradict each other or are wrong, or a file is missing or is no
            model config or profile.
    """
    from packer_cli.config.gpu_model import PREDICTION, model_values  # Only predictions need the cost model.
    from packer_cli.cost.analytic import NOT_MEASURED, parse_assumptions

    config.require_gpu_model(PREDICTION)
    parse_assumptions(config.assume, NOT_MEASURED if config.profile else None)
    try:
        return resolved.noting(gpu_model=model_values(load_model(config, PREDICTION)))
    except ConfigError as error:  # A profile of too few rows.
        say(f"{_NO_SECONDS}: {error}")
        return resolved


def predicted(plan: Plan, config: PlannedConfig) -> Plan:
    """Add predicted seconds of its steps to a plan, if its options have a model of the GPUs that can predict them."""
    if config.gpu_model is None:
        return plan
    from packer_cli.simulate.figures import with_step_seconds  # Only predictions need the simulator.

    try:
        return with_step_seconds(plan, config.gpu_model)
    except (ConfigError, ValueError) as error:
        say(f"{_NO_SECONDS}: {error}")
        return plan


_NO_SECONDS = "the steps get no predicted seconds"
_ITEM_BYTES = 200
"""Bytes that a plan takes for each item, besides those for a sample; measured on half a million pairs."""


def require_memory(num_samples: float, of_each: int) -> None:
    """Raise RunError for more samples an epoch, of so many bytes each, than this process can plan in its memory."""
    available, needed = available_memory(), num_samples * of_each
    if available is not None and needed > available:
        raise RunError(
            f"planning {num_samples:,.0f} samples an epoch takes about {needed / 2**30:,.1f} GiB of memory, and this "
            f"process may have {available / 2**30:,.1f} GiB; give smaller weights (PATH@WEIGHT), divide the inputs "
            "among several sets, or plan on a machine with more memory"
        )


def run_plan(options: Mapping[str, Any], source: Path, folder: Path) -> None:
    """Plan the token store in `source/tokens`, and write the plan to `folder`, which may be `source`.

    Args:
        options: options of `StorePlanConfig` by name; one that is None or missing is as in the plan in `source`.
    """
    refuse_part(source)
    recorded = config_of_plan(source)
    config, given = recorded.with_options(options) if recorded else (validate(StorePlanConfig, options), None)
    require_plan(config, given)
    store = source / TOKENS
    unit = read_index(store).unit if (store / INDEX_NAME).exists() else None
    checked = check_options(config, unit, given or ())
    require_tokens(store)
    if unit is None:  # For a wrong name, report the missing store, not an unusable output folder.
        read_index(store)
    if recorded is not None and not config.has_gpu_model:
        checked = checked.noting(gpu_model=recorded.gpu_model)
    with locked_output(folder):
        say_changes = partial(_say_changes, recorded, given, source) if recorded and given is not None else None
        make_plan(config, checked, source, folder, say_changes)


def _say_changes(recorded: PlannedConfig, given: set[str], source: Path, config: PlannedConfig) -> None:
    """Print in a line the options that are no longer as recorded, and the other recorded ones that are no defaults."""
    before, after = recorded.as_text(), config.as_text()
    known = [name for name in StorePlanConfig.model_fields if name in recorded.names_given() | given]
    changed = [name for name in known if before.get(name) != after.get(name)]
    if changed:
        new = [f"{option_name(name)} {after.get(name, 'none')} (was {before.get(name, 'none')})" for name in changed]
        old = [f"{option_name(name)} {before[name]}" for name in known if name in before.keys() - given - {*changed}]
        say(f"changed: {', '.join(new)}" + (f"; as in {source}: {', '.join(old)}" if old else ""))


def check_options(config: PlanConfig, unit: str | None, given: Collection[str] = ()) -> Resolved:
    """Resolve the options, to report wrong ones before any work.

    Args:
        unit, given: see `resolve`.

    Raises the errors of `resolve`, and ConfigError for a strategy or packing of this process, which no later command
    would find.
    """
    resolved = resolve(config, unit, given)
    if config.has_gpu_model:
        resolved = with_gpu_model(resolved, config)
    for option, package in (resolved.config.packages or {}).items():
        if package == OBJECT:
            raise ConfigError(
                f"{option} {getattr(config, option)!r} is {OBJECT}, and a later command could not find it, so nothing "
                "is written with it; bring it in a package, see docs/extending.md"
            )
    return resolved


def make_plan(
    given: StorePlanConfig, checked: Resolved, source: Path, folder: Path, say_options: partial[None] | None = None
) -> None:
    """Plan the token store in `source/tokens`, and write `folder/plan.arrow` and `folder/rejected.jsonl`.

    If samples are set aside, they are planned in `folder/validation`. Where one of the two plans fails, both folders
    stay as they are.

    Args:
        checked: the result of `check_options` for the given options.
        say_options: called with the options when the groups are known, before the planning.
    """
    store = source / TOKENS
    of_store = StoreSamples(open_store(store))
    resolved, choice = checked, None
    if not given.groups or of_store.all.unit == "item" or checked.config.max_path_tokens:
        resolved, choice = resolve_for(given, of_store.all)
        resolved = resolved.noting(gpu_model=checked.config.gpu_model)
        say_choice(choice)
    if say_options is not None:
        say_options(resolved.config)
    validation = resolved.config.validation
    if validation is None or not len(of_store.store):  # Without samples, there is nothing to plan at all.
        _draft(resolved, choice, of_store, folder)()
        remove_validation(folder)
        return
    refuse_other(folder)
    own, (bound, num_aside) = folder / VALIDATION, of_store.set_aside(validation, resolved.config.dedup)
    resolved = resolved.noting(validation=bound)
    with naming(VALIDATION):
        aside = resolve(resolved.config.of_validation()).noting(is_validation=True)
        write_aside = _draft(aside, None, of_store, own)
    write = _draft(resolved, choice, of_store, folder)
    with naming(VALIDATION):
        write_aside()
        if validation.isdigit() and num_aside > int(validation):
            found = counted(num_aside, of_store.store.index.unit)
            say(f"{found} instead of {int(validation):,}: equal ones stay together")
        if any(group.tp_size * group.pp_size > 1 for group in resolved.config.groups):
            say("each row is on one GPU, so evaluate with a model that tp and pp do not divide among GPUs")
    write()


def _draft(resolved: Resolved, choice: GroupChoice | None, of_store: StoreSamples, folder: Path) -> Callable[[], None]:
    """Plan one set: the samples that `resolved` asks for, for `folder`. Return a function that writes the plan."""
    watch, store, index, config = Stopwatch(), of_store.store.folder, of_store.store.index, resolved.config
    chosen = [asdict(choice)] if choice else []
    wanted = fingerprint(config.decisions(), index.fingerprint, PLAN_VERSION, *chosen)
    there = current_plan(folder, store)
    if there and there.fingerprint == wanted:
        return partial(_keep_plan, there, of_store, folder)
    is_validation = config.is_validation
    samples = of_store.of(config)

    def pieces_of(cut: Cut) -> Pieces:
        if cut.rule.overflow == "error" and len(cut.over):
            refuse_overflow(of_store.store, cut)
        if not len(cut.pieces):
            raise NothingToPlanError(why_nothing(of_store.store, cut, is_validation, folder))
        return cut.pieces

    try:
        plan, cut = plan_cut(samples, resolved, pieces_of)
    except NothingToPlanError:
        if there is None or there.store_fingerprint != index.fingerprint:  # Otherwise the plan that is there holds.
            (folder / PLAN_NAME).unlink(missing_ok=True)
            write_rejected(folder, partial(left_out, config, of_store))
        raise
    plan = predicted(plan, config)
    piece_loss = piece_loss_of(of_store.store, samples, plan.pieces)
    header = PlanHeader(
        fingerprint=wanted,
        store=relative_path(store, folder),
        store_fingerprint=index.fingerprint,
        config=config,
        group_choice=choice,
        counts=counts_of(config, of_store, cut.counts(plan.pieces, piece_loss.tokens), piece_loss),
        metrics=plan_stats(plan, resolved.request, samples.sources),
    )
    seconds = str(watch)

    def write() -> None:
        manifest = current_manifest(folder)
        if manifest is not None and manifest.history and not is_of_plan(manifest, header.fingerprint):
            warn(
                f"the set was rebalanced to {counted(manifest.num_gpus, 'GPU')}, and this is another plan, for "
                f"{counted(config.gpus, 'GPU')}; run hbpack rebalance again if you need it"
            )
        (folder / REJECTED_NAME).unlink(missing_ok=True)  # Written last: a plan without it is not finished.
        write_plan(folder / PLAN_NAME, plan, piece_loss, header)
        write_rejected(folder, partial(left_out, config, of_store, cut))
        overall = header.metrics.overall
        say(
            f"planned {counted(overall.num_packs, 'pack')}, {counted(overall.num_iterations, 'iteration')}, "
            f"{counted(overall.num_steps, 'step')} ({seconds})"
        )
        for note in plan_notes(of_store, plan, piece_loss, header):
            say(note)

    return write


def _keep_plan(header: PlanHeader, of_store: StoreSamples, folder: Path) -> None:
    """Leave a plan as it is; rewrite `rejected.jsonl` if file names in it have changed, which are not in the plan."""
    say("the plan is up to date")
    if write_rejected(folder, partial(left_out, header.config, of_store)):
        say(f"{REJECTED_NAME} is rewritten")
