"""The compare stage: many plans of the same samples, side by side. It keeps no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from packer_cli.commands.planning import resolve_for, say_choice
from packer_cli.commands.samples import read_samples
from packer_cli.commands.simulate import load_simulator
from packer_cli.compare import Comparison, compare
from packer_cli.compare.rows import default_rows, parse_rows, strategy_rows, with_baselines
from packer_cli.config import PlanConfig, TokenizeConfig
from packer_cli.config.effects import require_use
from packer_cli.config.resolve import resolve
from packer_cli.engine.local import default_workers
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.errors import ConfigError
from packer_cli.groups.auto import with_placeholder_groups
from packer_cli.plan.core.pieces import Samples
from packer_cli.plan.strategies.registry import DEFAULT
from packer_cli.simulate.figures import SimulateRules
from packer_cli.sizes import counted
from packer_cli.tables.columns import parse_sort, sort_rows


def run_compare(
    inputs: Sequence[str] | Samples,
    corpus: TokenizeConfig | None,
    config: PlanConfig,
    algorithms: str | None,
    workers: int | None,
    rules: SimulateRules | None = None,
    *,
    strategies: str | None = None,
    sort: str | None = None,
    by_program: bool = False,
) -> Comparison:
    """Plan the same samples once for each row. A corpus is tokenized into a temporary folder.

    If the options name a time model, each row's epoch time is predicted too.

    Args:
        algorithms: rows, see `compare.rows`; None for the default table.
        strategies: instead of them, a row for each of these.
        rules: simulate each row with these rules, and add HBP's baseline.
        sort: the order of the rows, see `tables.columns`.
        by_program: also prove the least number of packs with the linear program.
    """
    has_model = rules is not None or config.has_gpu_model
    order = None if sort is None else parse_sort(sort, has_model=has_model, has_cost=config.cost != "quadratic")
    if strategies is None and config.planner.packs_itself:
        name = config.strategy
        raise ConfigError(
            f"--strategy {name} packs in its own way, so it has no packings and balances to compare; "
            f"see hbpack compare --strategies {name},balanced"
        )
    rows_of = default_rows if algorithms is None else partial(parse_rows, algorithms)
    if strategies is not None:
        if algorithms is not None or config.strategy != DEFAULT:
            other = "--strategy" if algorithms is None else "--algorithms"
            raise ConfigError(f"--strategies and {other} do not go together; give one of them")
        rows_of = partial(strategy_rows, strategies, is_quiet=config.is_auto)
    base = resolve(with_placeholder_groups(config))
    rows = rows_of(base)  # Report wrong options before the long work.
    require_use(config, [row.config for row in rows])
    simulator = load_simulator(config, config.gpus, rules or SimulateRules()) if has_model else None
    workers = workers or default_workers()
    samples = read_samples(inputs, corpus, workers)
    choice = None
    if config.is_auto:
        base, choice = resolve_for(config, samples)
        say_choice(choice)
        rows = rows_of(base) if strategies is None else strategy_rows(strategies, base, choice)
    baseline = None
    if rules is not None:
        rows, baseline = with_baselines(rows, base)
    watch = Stopwatch()
    comparison = compare(samples, base.config, rows, workers, simulator, baseline=baseline, by_program=by_program)
    say(
        f"compared {counted(len(rows), 'plan')} of {counted(len(samples.lengths), 'sample')}, "
        f"{workers} at a time ({watch})"
    )
    return replace(comparison, rows=sort_rows(comparison.rows, order), group_choice=choice)
