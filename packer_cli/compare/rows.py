"""The rows of a comparison: the plan options, each with a different packing, balance or group.

A row is written `[PACKING][/BALANCE][@longest]`. Omitted parts are as in the plan options; `@longest` keeps only the
longest group. Examples: `isf:rounds=10/window:8`, `/none`, `none@longest`. `--algorithms` accepts the name of every
row of the default table. Rows of `--strategies` are the plan options with the defaults of other strategies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from packer_cli.compare.row_process import candidates
from packer_cli.config import PlanConfig, PlannedConfig
from packer_cli.config.fields import GIVE, asked_of_trainer, refusal, unsupported
from packer_cli.config.groups import parse_group, read_parallel, with_parallel
from packer_cli.config.messages import TreesError
from packer_cli.config.resolve import Resolved, resolve
from packer_cli.cost.predict import GpuModel
from packer_cli.engine.progress import say
from packer_cli.errors import ConfigError
from packer_cli.format.layout import ONE_GPU
from packer_cli.format.metrics import HBP, GroupChoice
from packer_cli.format.records import Hidden
from packer_cli.plan.core.groups import Group
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY, PackingAlgorithm, parse_packing
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.plan.strategies.registry import BASELINE, DEFAULT, STRATEGIES
from packer_cli.plugins import OBJECT, unknown

FORM = "[PACKING][/BALANCE][@longest], such as bfd, /window:8+refine or isf:rounds=10/none@longest"
BALANCES = tuple(
    order + refine for order in ("none", "window:4", "window:16", "window:64", "sort") for refine in ("", "+refine")
)
TIME_LIMIT = 10.0
"""Seconds, for all groups together, that the default table gives to a packing with a time limit."""

ALL = "all"
"""The value of `--strategies` for all of them."""

_LONGEST = "longest"
_NAIVE = ("isf/none@longest", "HBP's baseline, naive ISF packing")
_SORTED = ("sorted/sort@longest", "samples of like length share a pack")
_PADDED = (
    ("padded/none@longest", "random batches, as large as fit, padded to their longest sample"),
    ("padded:order=sorted/sort@longest", "batches of samples of like length, padded to their longest"),
    ("padded:batch=1/none@longest", "one sample a row without padding, shuffled"),
)
"""Baselines and notes on them; of the last, those that do not pack."""


Kind = Literal["packing", "balance", "baseline", "strategy", "chosen"]
"""Kind of a row; `chosen` is by the user."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan to compare."""

    name: str
    """Name as `--algorithms` or `--strategies` take it."""
    kind: Kind
    plan: Hidden[Resolved]
    note: str
    is_own: bool
    """Whether it is what the options themselves plan."""
    is_eligible: Hidden[bool] = True
    """Whether it may be recommended: it can be packed and, unless the options ask for that, cuts no other samples."""
    candidates: Hidden[tuple[Resolved, ...]] = ()
    """Plans of which the fastest becomes the row's; empty for `plan` alone."""
    able: Hidden[frozenset[str]] = frozenset()
    """Abilities of the trainer, see docs/trainers.md."""

    @property
    def config(self) -> PlannedConfig:
        """The options of the plan."""
        return self.plan.config

    @property
    def request(self) -> PlanRequest:
        """The same, as numbers."""
        return self.plan.request

    @property
    def is_of_process(self) -> bool:
        """Whether its strategy or packing is an object that only this process has."""
        return OBJECT in (self.config.packages or {}).values()

    @property
    def may_take_longest(self) -> bool:
        """Whether the packing may stop at a time limit, or the strategy plans each step for itself."""
        strategy = self.request.strategy
        has_limit = hasattr(self.request.packing_options, "time_limit")
        return has_limit or strategy.keeps_steps


def default_rows(base: Resolved) -> list[Row]:
    """Make rows for every packing algorithm, every balance, and the baselines of the papers.

    Packing rows use the options' balance, balance rows the options' packing; equal rows appear once.
    """
    rows = []
    longest = base.config.groups[-1].capacity
    for algorithm in REGISTRY.values():
        if algorithm.is_padded and base.request.shapes_rows:
            continue
        if algorithm.needs_power_of_two and longest & (longest - 1):
            continue
        is_given = algorithm.name == base.request.algorithm.name
        packing = base.config.packing if is_given else _limited(algorithm, len(base.config.groups))
        rows.append(_make_row(base, "packing", packing))
    rows += [
        _make_row(base, "balance", f"/{balance}")
        for balance in BALANCES
        if not (base.request.algorithm.is_padded and parse_balance(balance).refine)
    ]
    return _unique([*rows, *_baseline_rows(base, (_NAIVE, _SORTED, *_PADDED))], base)


def with_baselines(rows: list[Row], base: Resolved, model: GpuModel) -> tuple[list[Row], int]:
    """Add HBP's baseline, the baseline at its best, and padded batches; return the rows and the second one's index."""
    as_published = {"packing": "isf", "balance": "none"}
    options = base.given.with_others(strategy=BASELINE).model_copy(update=as_published)
    naive = resolve(options)
    plans = candidates(naive, model)
    best = Row(
        name=BASELINE, kind="baseline", is_own=False, plan=naive, note="HBP's baseline at its best", candidates=plans
    )
    published, *padded = _baseline_rows(base, (_NAIVE, _PADDED[0]))
    rows = _unique([*rows, published, best, *padded], base)
    keys = [(_key(row.plan), len(row.candidates) > 1) for row in rows]
    return rows, keys.index((_key(naive), len(plans) > 1))


def parse_rows(text: str, base: Resolved) -> list[Row]:
    """Parse comma-separated rows, in the form that the module describes.

    Raises:
        ConfigError: a row is empty or malformed, or names an unknown packing, option or balance.
    """
    rows = []
    for item in split_rows(text):
        spec, at, which = item.partition("@")
        packing, slash, balance = spec.partition("/")
        if not item or (slash and not balance) or (at and which != _LONGEST):
            raise ConfigError(f"--algorithms: row {item!r} is not {FORM}")
        try:
            rows.append(_make_row(base, "chosen", item))
        except (ConfigError, ValueError) as error:
            why = str(error).removeprefix("--packing: ").removeprefix("--balance: ")
            hint = f"; a balance follows a slash: /{packing}" if _is_balance(packing) else ""
            raise ConfigError(f"--algorithms: row {item!r}: {why}{hint}") from None
    return _unique(rows, base)


def strategy_rows(
    text: str,
    base: Resolved,
    choice: GroupChoice | None = None,
    model: GpuModel | None = None,
    *,
    is_quiet: bool = False,
) -> list[Row]:
    """Make a row for each of the comma-separated strategies, or for `all`; a notice, unless quiet, says which cannot.

    With a model, each but that of the options is on the best of its own layouts, and HBP's baseline has a second row,
    on that of the longest group.

    Args:
        choice: how the groups were chosen, if they were: a strategy with a choice of its own, HBP's, takes that.

    Raises:
        ConfigError: there is no such strategy, or the plan options do not fit one that is named (where the groups were
            chosen, that is left out), or the samples share prefixes and no strategy can plan them.
    """
    config = base.given
    names = [name.strip() for name in text.split(",")]
    may_leave_out = set(STRATEGIES).difference(names, [config.strategy]) if ALL in names else set()
    if ALL in names:
        names = [*STRATEGIES, *(name for name in names if name != ALL)]
    rows, left_out = [], dict[str, str | TreesError]()
    for name in dict.fromkeys(names):
        if name not in STRATEGIES:
            raise ConfigError(f"--strategies: {unknown('strategy', name, (ALL, *STRATEGIES.names()))}")
        own = _of_strategy(name, base, choice, may_leave_out=name in may_leave_out)
        if not isinstance(own, Resolved):
            left_out[name] = own
            continue
        note = own.request.strategy.summary
        if base.request.limits and "packing" not in own.request.strategy.ignores:
            note += f"; here {own.config.packing} packs"
        if own.config.cost != base.config.cost:
            note += f"; its imbalance is of --cost {own.config.cost}"
        has_layouts = model is not None and _key(own) != _key(base)
        plans = candidates(own, model) if model is not None and has_layouts else ()
        rows.append(Row(name=name, kind="strategy", is_own=False, plan=own, note=note, candidates=plans))
        if name == BASELINE and len(plans) > 1:
            note = "the same at the degree of the longest group, as HBP's paper compares"
            rows.append(
                Row(name=f"{name}@{_LONGEST}", kind="baseline", is_own=False, plan=own, note=note, is_eligible=False)
            )
    _leave_out(left_out, rows, is_quiet)
    named = [row.plan for row in rows if row.name not in may_leave_out and config.trainer is None]
    return _unique(rows, base, named)


def _of_strategy(
    name: str, base: Resolved, choice: GroupChoice | None, *, may_leave_out: bool
) -> Resolved | TreesError | str:
    """Return the options with another strategy; or why it cannot plan with them, where it may be left out."""
    config = base.given
    why = base.why_not(STRATEGIES[name]) or (_lacks(name, config) if may_leave_out else None)
    if why is not None:
        return why
    option = unsupported(name, config)
    if option is not None:
        raise ConfigError(f"--strategies: {refusal(name, option, config)}")
    try:
        theirs = _groups_of(name, choice) if config.group_algorithm is None else None
        if name == config.strategy and theirs is None:
            return base
        given = config.with_others(strategy=name)
        return resolve(given if theirs is None else given.with_groups(theirs))
    except TreesError as error:
        return error
    except ConfigError as error:
        if not may_leave_out and choice is None:
            raise
        return str(error).removeprefix(f"--strategy {name}: ")


def _leave_out(refused: Mapping[str, str | TreesError], kept: Sequence[Row], is_quiet: bool) -> None:
    """Say, unless quiet, which rows are left out, and why; raise an error where prefixes leave none."""
    errors = [why for why in refused.values() if isinstance(why, TreesError)]
    if errors and not kept:
        raise errors[-1]
    names: dict[str, list[str]] = {}
    for name, why in refused.items():
        names.setdefault(why if isinstance(why, str) else why.why, []).append(name)
    for text, those in names.items():
        if not is_quiet:
            say(f"left out {', '.join(those)}: {text}")


def _groups_of(name: str, choice: GroupChoice | None) -> list[Group] | None:
    """Return the groups that a strategy's own algorithm chose; None if those of the options are as good."""
    if choice is None or STRATEGIES[name].defaults.get("group_algorithm", "search") == choice.algorithm:
        return None
    found = (each.groups for each in choice.alternatives if each.name == HBP)
    layout = read_parallel(choice.parallel) or ONE_GPU
    return next(([*with_parallel(map(parse_group, text.split(",")), layout)] for text in found), None)


def _lacks(name: str, config: PlanConfig) -> str | None:
    """Say what a strategy misses in the options; None if it can plan with them."""
    strategy = STRATEGIES[name]
    needs = [GIVE] if "a cost model" in strategy.needs and not config.has_gpu_model else []
    if "tokens of a step" in strategy.needs and config.global_tokens is None:
        needs.append("--global-tokens")
    if needs:
        return f"needs {' and '.join(needs)}"
    option = unsupported(name, config)
    return None if option is None else f"does not support {option}"


def able_rows(rows: Sequence[Row], *, is_quiet: bool = False) -> list[Row]:
    """Select the rows that can plan the samples; a notice, unless quiet, says which cannot, and why.

    Raises:
        ConfigError: none can.
    """
    refused = {row.name: error for row in rows if (error := row.plan.refusal())}
    kept = [row for row in rows if row.name not in refused]
    _leave_out(refused, kept, is_quiet)
    return kept


def own_row_first(rows: Iterable[Row], base: Resolved) -> list[Row]:
    """Put the plan of the options first, as the row of its strategy; then the rows that plan otherwise."""
    strategy = base.request.strategy
    own = Row(name=strategy.name, kind="strategy", is_own=False, plan=base, note=strategy.summary)
    return _unique([own, *rows], base)


def split_rows(text: str) -> list[str]:
    """Split at commas, except those between the options of a packing.

    >>> split_rows("isf:rounds=10,threshold=0.9/none,bfd")
    ['isf:rounds=10,threshold=0.9/none', 'bfd']
    """
    return [item.strip() for item in re.split(r",(?!\s*\w+=)", text)]


def _make_row(base: Resolved, kind: Kind, text: str, note: str = "") -> Row:
    """Make a row, written as the module describes, with any further change that its packing needs; a note says so.

    Raises:
        ConfigError, ValueError: an unknown packing, option or balance, or a balance that the packing rules out.
    """
    spec, is_longest, _ = text.partition("@")
    packing, _, balance = spec.partition("/")
    config, algorithm, changes = base.config, base.request.algorithm, dict[str, Any]()
    if base.request.strategy.packs_itself:
        changes |= {"strategy": DEFAULT, "group_costs": None}
    if packing:
        changes["packing"] = packing
        algorithm, _ = parse_packing(packing, REGISTRY)
    if not balance and algorithm.is_padded and base.request.balance.refine:
        balance = "none"
    if balance:
        changes["balance"] = balance
    if algorithm.needs_one_group and len(config.groups) > 1 and not (is_longest or algorithm.is_padded):
        note = f"{algorithm.name} needs exactly one group"
    if is_longest or algorithm.needs_one_group:
        changes["groups"] = config.groups[-1:]
    if algorithm.needs_split and config.overflow != "split":
        changes["overflow"] = "split"
        note = f"{algorithm.name} needs --overflow split"
    plan = base.changed(**changes)
    return Row(name=_name(plan, base), kind=kind, is_own=False, plan=plan, note=note)


def _baseline_rows(base: Resolved, baselines: Iterable[tuple[str, str]]) -> list[Row]:
    """Make rows of baselines; those that do not pack only where rows are samples one after another and no more."""
    able = [each for each in baselines if each not in _PADDED or not base.request.shapes_rows]
    return [_make_row(base, "baseline", *each) for each in able]


def _name(row: Resolved, base: Resolved) -> str:
    balance = "" if row.request.balance == base.request.balance else f"/{row.config.balance}"
    suffix = f"@{_LONGEST}" if row.request.groups != base.request.groups else ""
    return f"{row.config.packing}{balance}{suffix}"


def _limited(algorithm: PackingAlgorithm, num_groups: int) -> str:
    """Return the algorithm's name, with a time limit if it has that option."""
    names = {field.name for field in fields(algorithm.options)}
    return f"{algorithm.name}:time_limit={TIME_LIMIT / num_groups:g}" if "time_limit" in names else algorithm.name


def _unique(rows: Iterable[Row], base: Resolved, named: Iterable[Resolved] = ()) -> list[Row]:
    """Keep the first of equal rows, with the first note that any of them has, and mark the one that equals `base`.

    Strategies have a row each.

    Args:
        named: plans that the user asks for, and so can run.
    """
    able = base.given.abilities.union(*(asked_of_trainer(plan.request) for plan in (base, *named)))
    kept: dict[Any, Row] = {}
    for row in rows:
        key = (*_key(row.plan), len(row.candidates) > 1)
        first = kept.get(key, row)
        if row.kind == first.kind == "strategy" and row.name != first.name:
            key = (*key, row.name)
        if key not in kept:
            is_own = key[:-1] == _key(base)
            is_eligible = row.is_eligible and _is_eligible(row, base, is_own=is_own)
            kept[key] = replace(row, is_own=is_own, is_eligible=is_eligible, able=able)
        elif row.note and not kept[key].note:
            kept[key] = replace(kept[key], note=row.note)
    return list(kept.values())


def _is_eligible(row: Row, base: Resolved, *, is_own: bool) -> bool:
    algorithm = row.request.algorithm
    cuts_others = algorithm.cut is not None or row.config.overflow != base.config.overflow
    return row.request.strategy.is_packed and not algorithm.is_padded and (is_own or not cuts_others)


def _key(row: Resolved) -> tuple[Any, ...]:
    request = row.request
    return (
        request.algorithm.name, request.packing_options, request.fill, request.balance, request.groups, request.steps,
        row.config.overflow, request.sharding.choice, request.max_samples, request.lockstep, _planner(row),
    )  # fmt: skip


def _planner(row: Resolved) -> Any:
    """Return a key of the strategy; strategies of hbpack's own that differ in options alone share their key."""
    is_own = STRATEGIES.package(row.config.strategy) is None
    return type(row.request.strategy).plan if is_own else row.config.strategy


def _is_balance(text: str) -> bool:
    try:
        parse_balance(text)
    except ValueError:
        return False
    return True
