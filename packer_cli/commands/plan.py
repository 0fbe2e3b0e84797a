"""`plan`: samples that share a pack, and packs that run together; a token store's plan becomes `plan.arrow`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from packer_cli.commands.arguments import Lengths, StrPath, is_paths, one_path, takes
from packer_cli.commands.output_folder import (
    config_of_plan,
    current_manifest,
    current_plan,
    locked_output,
    locked_validation,
    refuse_validation,
    removing_validation,
    require_tokens,
    write_rejected,
)
from packer_cli.commands.plan_result import Plan, plan_in_memory, read_planned
from packer_cli.commands.plan_store import (
    NothingToPlanError,
    left_out,
    plan_notes,
    plan_store,
    resolve_for,
    say_choice,
    with_gpu_model,
)
from packer_cli.commands.samples import find, require_samples
from packer_cli.config import PlanConfig, PlannedConfig, StorePlanConfig, option_name, validate
from packer_cli.config.resolve import Resolved, require_plan, resolve
from packer_cli.engine.array import ArrayRecords
from packer_cli.engine.progress import Stopwatch, naming, say, warn
from packer_cli.errors import ConfigError
from packer_cli.files import fingerprint
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, REJECTED_NAME, SHARD_MARKERS, VALIDATION
from packer_cli.format.metrics import GroupChoice
from packer_cli.plugins import OBJECT
from packer_cli.remote.path import as_path, relative_path
from packer_cli.shards.manifest import is_of_plan
from packer_cli.shards.plan_file import PLAN_VERSION, PlanHeader, write_plan
from packer_cli.sizes import counted
from packer_cli.startup import skip_extensions
from packer_cli.tokens.index import INDEX_NAME, TOKENS, read_index
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import open_store

if TYPE_CHECKING:
    from packer_cli.commands.option_types import StorePlanOptions


_SayOptions = Callable[[PlannedConfig], None]


@takes(StorePlanConfig)
def plan(lengths: Lengths, *, output: StrPath | None = None, **options: Unpack[StorePlanOptions]) -> Plan:
    """Plan samples: groups, packs, iterations and steps. The options are those of `hbpack plan`.

    Only lengths are needed, so a plan takes seconds, and you can look at it before a token is written. The result is
    the same as that of the command. A million lengths take about as long as by the command: the plan is made in this
    process, by the same code. Where the path holds a plan, options that you leave out are those of that plan.

    Args:
        lengths: tokens of each sample, as a numpy array, a list, or a column of pyarrow, pandas or polars (int[n]);
            or the path or URL of a file of lengths, of a token store, or of a packed set that keeps its tokens.
        output: folder for the plan of a token store, as `hbpack plan --output` writes it. By default, nothing is
            written.
        options: see "Options of a plan"; `groups` and `gpus` are required by most strategies.

    Raises:
        HbpackError: an option or a length is wrong, or there is nothing to plan.
    """
    if output is not None:
        if not is_paths(lengths):
            raise ConfigError("output: a plan is written beside the tokens of a token store, which lengths lack")
        return run_plan(options, one_path(lengths, "plan"), as_path(output))
    found = find(lengths, "plan")
    samples, recorded = require_samples(found), config_of_plan(found.path) if found.kind == "folder" else None
    if options.get("validation") is not None:
        raise ConfigError(
            "validation: samples are set aside by their tokens, when the plan of a token store is written; give "
            "output, or leave validation out"
        )
    config, given = recorded.with_options(options) if recorded else (validate(StorePlanConfig, options), None)
    return plan_in_memory(samples, config, given)


def run_plan(options: Mapping[str, Any], source: Path, folder: Path) -> Plan:
    """Plan the token store in `source/tokens`, and write the plan to `folder`, which may be `source`.

    Args:
        options: options of `StorePlanConfig` by name; one that is None or missing is as in the plan in `source`.
    """
    refuse_validation(source)
    recorded = config_of_plan(source)
    config, given = recorded.with_options(options) if recorded else (validate(StorePlanConfig, options), None)
    require_plan(config, given)
    store = source / TOKENS
    unit = read_index(store).unit if (store / INDEX_NAME).exists() else None
    checked = check_options(config, unit, given or ())
    if unit is None:  # For a wrong name, report the missing store, not an unusable output folder.
        require_tokens(store)
        read_index(store)
    if recorded is not None and not config.has_gpu_model:
        checked = checked.noting(gpu_model=recorded.gpu_model)
    with locked_output(folder):
        say_changes = partial(_say_changes, recorded, given, source) if recorded and given is not None else None
        make_plan(config, checked, source, folder, say_changes)
    return read_planned(folder)


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
    given: StorePlanConfig, checked: Resolved, source: Path, folder: Path, say_options: _SayOptions | None = None
) -> None:
    """Plan the token store in `source/tokens`, and write `folder/plan.arrow` and `folder/rejected.jsonl`.

    If samples are set aside, they are planned in `folder/validation`. Where one of the two plans fails, both folders
    stay as they are.

    Args:
        checked: the result of `check_options` for the given options.
        say_options: called with the options when the groups are known, before the planning.
    """
    skip_extensions()
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
        write = _draft(resolved, choice, of_store, folder)
        with removing_validation(folder):
            write()
        return
    bound, num_aside = of_store.set_aside(validation)
    resolved = resolved.noting(validation=bound)
    with locked_validation(folder) as own:
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
    try:
        plan, piece_loss, counts, metrics, cut = plan_store(of_store, resolved, folder)
    except NothingToPlanError:
        if there is None or there.store_fingerprint != index.fingerprint:  # Otherwise the plan that is there holds.
            _disown_plan(folder)
            write_rejected(folder, partial(left_out, config, of_store))
            (folder / PLAN_NAME).unlink(missing_ok=True)
        raise
    header = PlanHeader(
        fingerprint=wanted,
        store=relative_path(store, folder),
        store_fingerprint=index.fingerprint,
        config=config,
        group_choice=choice,
        counts=counts,
        metrics=metrics,
    )
    seconds = str(watch)

    def write() -> None:
        manifest = current_manifest(folder)
        if manifest is None or not is_of_plan(manifest, header.fingerprint):
            if manifest is not None and manifest.history:
                warn(
                    f"the set was rebalanced to {counted(manifest.num_gpus, 'GPU')}, and this is another plan, for "
                    f"{counted(config.gpus, 'GPU')}; run hbpack rebalance again if you need it"
                )
            _disown_plan(folder)
        ArrayRecords(folder / SHARD_MARKERS).reset()  # An array that writes the plan before this one is over.
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


def _disown_plan(folder: Path) -> None:
    """Remove the manifest of the old plan before a new one replaces it; `rejected.jsonl` is written last.

    The old plan, or without one its `rejected.jsonl`, stays until then: it marks the folder as hbpack's if the run is
    killed.
    """
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    if (folder / PLAN_NAME).exists():
        (folder / REJECTED_NAME).unlink(missing_ok=True)
