"""The plan stage: a token store to `plan.arrow` and `rejected.jsonl`."""

from __future__ import annotations

from pathlib import Path

from packer_cli.config import PlanConfig
from packer_cli.config.rules import plan_rules, with_groups, with_known_cost
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, REJECTED_NAME
from packer_cli.kernels import skip_extensions
from packer_cli.plan.pieces import overflow_notes
from packer_cli.plan.rules import PlanRules
from packer_cli.shards.plan_file import PlanHeader, write_plan
from packer_cli.sizes import counted
from packer_cli.stages.output import TOKENS, current_plan, is_of_plan, locked_output, store_of
from packer_cli.stages.planning import (
    NothingToPlanError,
    overflow_entries,
    plan_fingerprint,
    plan_store,
    samples_of_store,
    with_known_groups,
)
from packer_cli.stages.rejected import write_rejected
from packer_cli.tokens.index import read_index
from packer_cli.tokens.store import TokenStore


def run_plan(config: PlanConfig, source: Path, folder: Path) -> PlanHeader:
    """Check the options and the token store in `source/tokens`, and plan it; see `make_plan`."""
    config, rules = checked_options(config)
    # `folder` may be `source`: for a wrong name, report the missing store, not an unusable output folder.
    read_index(source / TOKENS)
    return make_plan(config, rules, source, folder)


def checked_options(config: PlanConfig) -> tuple[PlanConfig, PlanRules]:
    """The options with a known cost, and the same parsed, with made-up groups in place of `auto`.

    To report wrong options before any work. Raises the errors of `plan_rules` and `with_placeholder_groups`.
    """
    config = with_known_cost(config)
    if not config.is_auto:
        return config, plan_rules(config)  # Named groups need none of the search.
    from packer_cli.groups.auto import with_placeholder_groups

    return config, plan_rules(with_placeholder_groups(config))


@locked_output()
def make_plan(config: PlanConfig, rules: PlanRules, source: Path, folder: Path) -> PlanHeader:
    """Plan the token store in `source/tokens`. Writes `folder/plan.arrow` and `folder/rejected.jsonl`.

    Args:
        config, rules: as `checked_options` gives them.
    """
    watch = Stopwatch()
    skip_extensions()
    index = read_index(source / TOKENS)
    config, choice = with_known_groups(config, lambda: samples_of_store(TokenStore(source / TOKENS, index)))
    wanted = plan_fingerprint(config, index.fingerprint, choice)
    header = current_plan(folder)
    if (
        header
        and header.fingerprint == wanted
        and store_of(folder, header).resolve() == (source / TOKENS).resolve()
        and (folder / REJECTED_NAME).exists()
    ):
        say("the plan is up to date")
        overflow = overflow_entries(config, source / TOKENS, index)
        if write_rejected(folder, index, source / TOKENS, overflow):  # It names files, which the plan does not.
            say(f"{REJECTED_NAME} is rewritten")
        return header
    keeps_set = is_of_plan(folder, wanted)
    try:
        rules = with_groups(rules, config.groups)
        result = plan_store(config, rules, TokenStore(source / TOKENS, index), folder, choice)
    except NothingToPlanError as error:
        _disown_plan(folder)
        write_rejected(folder, index, source / TOKENS, error.overflow)
        (folder / PLAN_NAME).unlink(missing_ok=True)
        raise
    if not keeps_set:
        _disown_plan(folder)
    write_plan(folder / PLAN_NAME, result.plan, result.piece_loss_tokens, result.header)
    write_rejected(folder, index, source / TOKENS, result.overflow)
    overall = result.header.metrics.overall
    say(
        f"planned {counted(overall.num_packs, 'pack')}, {counted(overall.num_iterations, 'iteration')}, "
        f"{counted(overall.num_steps, 'step')} ({watch})"
    )
    for note in overflow_notes(result.header.counts, config.groups[-1].capacity, config.overflow):
        say(note)
    return result.header


def _disown_plan(folder: Path) -> None:
    """Remove the manifest of the old plan before a new one replaces it; `rejected.jsonl` is written last.

    The old plan, or without one its `rejected.jsonl`, stays until then: it marks the folder as hbpack's if the run is
    killed.
    """
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    if (folder / PLAN_NAME).exists():
        (folder / REJECTED_NAME).unlink(missing_ok=True)
