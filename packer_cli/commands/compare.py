"""`compare`: many plans of the same samples, side by side. The comparison keeps no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from packer_cli.commands.arguments import Inputs, corpus_of, listed, takes
from packer_cli.commands.plan import resolve_for, say_choice
from packer_cli.commands.samples import read_samples
from packer_cli.compare import Comparison as ComparedPlans
from packer_cli.compare import compare as compare_plans
from packer_cli.compare.rows import Row, able_rows, default_rows, parse_rows, strategy_rows, with_baselines
from packer_cli.config import (
    BoundConfig,
    PlanConfig,
    RepeatConfig,
    TokenizeConfig,
    TrainConfig,
    WorkersConfig,
    validate,
)
from packer_cli.config.gpu_model import PREDICTION, load_gpu_model
from packer_cli.config.resolve import Resolved, require_use, resolve
from packer_cli.engine.local import default_workers
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.errors import ConfigError
from packer_cli.format.metrics import GroupChoice
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.strategies.registry import DEFAULT
from packer_cli.simulate.figures import Simulator
from packer_cli.sizes import counted
from packer_cli.tables.compare import comparison_table, parse_sort, sort_rows
from packer_cli.tables.table import Result, Table

if TYPE_CHECKING:
    from packer_cli.commands.option_types import CallOfCompare
    from packer_cli.plan.packing import PackingAlgorithm
    from packer_cli.plan.strategies.protocol import Strategy


class Comparison(Result, ComparedPlans):
    """Plans of the same samples: `rows`, each with its figures, or the `error` for which it has none."""

    def _tables(self) -> Iterable[Table]:
        return [comparison_table(self)]


@takes(PlanConfig, TokenizeConfig, BoundConfig, RepeatConfig, WorkersConfig)
def compare(
    lengths: Inputs,
    *,
    algorithms: str | Sequence[str | PackingAlgorithm | Callable[..., Any]] | None = None,
    strategies: str | Sequence[str | Strategy] | None = None,
    sort: str | None = None,
    **options: Unpack[CallOfCompare],
) -> Comparison:
    """Compare packing algorithms, balances or whole strategies side by side, as `hbpack compare` does.

    Each row is planned in a process of its own, checked and measured; with `model` and `gpu`, or `profile`, its epoch
    is predicted as well. Nothing is kept.

    Args:
        lengths: as `plan` takes them; or, with `tokenizer`, a corpus as `pack` takes it.
        algorithms: only these rows: `[PACKING][/BALANCE][@longest],...`, such as `"isf,bfd,/window:8"`; or a list, in
            which objects may stand for packings.
        strategies: only a row for each of these values of `strategy`, or `"all"`; or a list, in which objects may
            stand for strategies.
        sort: a column of the table, such as `"abr"`; `"-abr"` sorts in descending order.
        options: those of a plan, of a corpus, `bound`, `seeds`, `sample` and `workers`.

    Returns:
        The rows, each with its figures or the reason why it failed.

    Raises:
        HbpackError: an option or a length is wrong, or there is nothing to plan.
    """
    named = {"algorithms": listed("packing", algorithms), "strategies": listed("strategy", strategies)}
    return run_compare(lengths, {**options, **named, "sort": sort})


def run_compare(lengths: Inputs, options: Mapping[str, Any], rules: TrainConfig | None = None) -> Comparison:
    """Plan the same samples once for each row. A corpus is tokenized into a temporary folder.

    If the options name a time model, each row's epoch time is predicted too.

    Args:
        options: those of `compare`; of them `algorithms` and `strategies` as text. Without `algorithms`, the rows are
            the default ones, or one for each of the `strategies`.
        rules: simulate each row with these rules, and add HBP's baseline.
    """
    algorithms, strategies, sort = map(options.get, ("algorithms", "strategies", "sort"))
    corpus, config = corpus_of(lengths, options), validate(PlanConfig, options)
    workers = validate(WorkersConfig, options).workers or default_workers()
    by_program, repeat = validate(BoundConfig, options).bound == "lp", validate(RepeatConfig, options)
    has_model = rules is not None or config.has_gpu_model
    order = None if sort is None else parse_sort(sort, has_model=has_model, has_cost=config.cost != "quadratic")
    if strategies is None and config.planner.packs_itself:
        name = config.strategy
        raise ConfigError(
            f"--strategy {name} packs in its own way, so it has no packings and balances to compare; "
            f"see hbpack compare --strategies {name},balanced"
        )
    if strategies is not None and (algorithms is not None or config.strategy != DEFAULT):
        other = "--strategy" if algorithms is None else "--algorithms"
        raise ConfigError(f"--strategies and {other} do not go together; give one of them")
    read = partial(read_samples, lengths, corpus, workers)
    samples = read() if corpus is None else None
    known: TokenizeConfig | Samples | None = corpus or samples
    base, choice = resolve(config, known.unit if known else None), None
    is_known = samples is not None and bool(config.groups)
    simulator = None
    if has_model:
        model = load_gpu_model(config, config.gpus, PREDICTION, config.lockstep)
        simulator = Simulator(model=model, rules=rules or TrainConfig())

    def rows_of(base: Resolved, choice: GroupChoice | None = None, *, is_known: bool = True) -> list[Row]:
        if strategies is not None:
            model = simulator.model if simulator and is_known else None
            rows = strategy_rows(strategies, base, choice, model, is_quiet=not is_known)
        else:
            rows = default_rows(base) if algorithms is None else parse_rows(algorithms, base)
        return able_rows(rows, is_quiet=not is_known)

    rows = rows_of(base, is_known=is_known)  # Report wrong options before the long work.
    require_use(config, [row.config for row in rows])
    samples = samples or read()
    if not is_known:
        base, choice = resolve_for(config, samples)
        say_choice(choice)
        rows = rows_of(base, choice)
    baseline = None
    if rules is not None and simulator is not None:
        rows, baseline = with_baselines(rows, base, simulator.model)
    watch = Stopwatch()
    draws = _draws(samples, repeat, config.seed)
    comparison = compare_plans(
        samples, base.config, rows, workers, simulator, baseline=baseline, by_program=by_program, draws=draws
    )
    some = counted(len(samples.lengths), samples.unit)
    say(f"compared {counted(len(rows), 'plan')} of {some}, {workers} at a time ({watch})")
    in_order = sort_rows(comparison.rows, order)
    return Comparison(**{**vars(comparison), "rows": in_order, "group_choice": choice})


_MOST_PLANNED, _DRAWN, _DRAWS = 3_000_000, 50_000, 3


def _draws(samples: Samples, repeat: RepeatConfig, seed: int) -> list[Samples]:
    """Return the samples to plan with each seed; print a notice if they are not all."""
    number = repeat.sample
    if number is None and samples.num_samples > _MOST_PLANNED and samples.can_be_drawn:
        number = _DRAWN
    if not number or number >= samples.num_samples:
        return [samples] * (repeat.seeds or 1)
    if not samples.can_be_drawn:
        raise ConfigError("--sample draws from samples that an epoch has once each, and that share no prefixes")
    draws = [samples.drawn(number, seed + k) for k in range(repeat.seeds or _DRAWS)]
    say(
        f"planning {number:,} of {samples.num_samples:,} samples, drawn for each of {counted(len(draws), 'seed')}; "
        "predicted epochs are scaled to all of them (--sample 0 plans all)"
    )
    return draws
