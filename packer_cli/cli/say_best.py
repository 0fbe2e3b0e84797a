"""The end of a comparison: its advice, and the row to pack with."""

from __future__ import annotations

from packer_cli.cli.console import print_line, print_note, say_next
from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.outcome import OF_LAYOUT
from packer_cli.config import option_name
from packer_cli.config.groups import used_groups, write_parallel
from packer_cli.config.resolve import without_effect
from packer_cli.sizes import duration, ratio


def say_best(comparison: Comparison) -> None:
    """Print the advice, and the last line: the row to pack with, and its command."""
    if comparison.advice:
        print_line()
        print_note(comparison.advice)
    best = comparison.best
    if best is None or best.overall is None:
        if any(group.pp_size > 1 for group in comparison.config.groups):
            say_next("What pipelines wait for is known with a model", "hbpack compare with --model and --gpu")
        return
    pack = f"hbpack pack with the same options{_changes(comparison, best)}"
    simulation, name = best.simulation, best.name
    if simulation:
        say_next(f"Of these plans, take {name}: {duration(simulation.overall.seconds)} an epoch", pack)
    else:
        times = "compare predicted epochs with --model CONFIG.JSON --gpu NAME"
        say_next(f"{name} loses least to padding and waiting, {ratio(best.overall.lost)} of the work", times, pack)


def _changes(comparison: Comparison, row: ComparedRow) -> str:
    """Write the options that differ from the given ones, and the given ones that then have no effect."""
    own, was_auto, best = comparison.config, comparison.group_choice is not None, row.config
    unused = set(without_effect(best, was_auto=was_auto))
    if best.strategy != own.strategy:
        changed = {"strategy": best.strategy}
        unused |= own.not_for(best.strategy)
        groups = used_groups(own.groups, best.planner)
        if not was_auto and groups != own.groups:
            changed["groups"] = ",".join(map(str, groups))
    else:
        before, after = (
            {"groups": ",".join(map(str, each.groups)), "packing": each.packing, "balance": each.balance}
            for each in (own, best)
        )
        changed = {option: value for option, value in after.items() if value != before[option]}
    if row.is_searched or (was_auto and best.strategy != own.strategy):  # It would choose groups of its own.
        found = {name: row.options[name] for name in OF_LAYOUT if name in row.options}
        given = {name: str(getattr(own, name)) for name in ("lockstep",) if name in own.model_fields_set}
        given["parallel"] = write_parallel(own.layout)
        if best.groups == own.groups and not was_auto:  # It has all of them as they are.
            given |= {name: found[name] for name in ("groups", "parallel") if name in found}
        changed = {name: value for name, value in changed.items() if name not in OF_LAYOUT}
        changed |= {name: value for name, value in found.items() if value != given.get(name)}
    if "groups" in changed:
        unused |= set(without_effect(best))
    unused &= own.model_fields_set - changed.keys()
    text = f" and {' '.join(f'{option_name(name)} {value}' for name, value in changed.items())}" if changed else ""
    return f"{text}, without {' '.join(map(option_name, sorted(unused)))}" if unused else text
