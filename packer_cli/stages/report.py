"""The report stage: what is known of a set, a plan or lengths, gathered for one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packer_cli.compare import ComparedRow, Comparison, compare
from packer_cli.compare.row_figures import RowFigures
from packer_cli.compare.rows import Row, is_same_plan, own_row, parse_rows, strategy_rows
from packer_cli.compare.savings import plan_simulation
from packer_cli.config import GpuConfig, PlanConfig
from packer_cli.config.strategies import STRATEGIES
from packer_cli.engine.local import default_workers
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.errors import FormatError, InputError
from packer_cli.files import atomic_file
from packer_cli.format.constants import PLAN_NAME
from packer_cli.plan.packing.wrap import join
from packer_cli.plan.samples import Samples
from packer_cli.report.build import build_page
from packer_cli.report.facts import Facts, PlanFacts, Prediction, Sources
from packer_cli.report.page import render
from packer_cli.simulate.figures import SimulateRules
from packer_cli.sizes import format_bytes
from packer_cli.stages.output import store_of
from packer_cli.stages.planned import Planned, plan_in_memory, read_planned
from packer_cli.stages.planning import samples_of_store
from packer_cli.stages.samples import require_samples
from packer_cli.stages.simulate import load_simulator
from packer_cli.stages.stats import plan_figures_of, sample_stats
from packer_cli.tokens.index import INDEX_NAME
from packer_cli.tokens.store import TokenStore

NO_STRATEGIES = "none"
"""The value of `--strategies` that compares nothing."""
GIVE_STRATEGIES = "Other strategies are compared with --strategies all, or with a list of their names."
_ORDERS = ("none", "window:4", "window:16", "window:64", "sort")
_MOST_REFINED = 300_000
"""Samples; of more, refining every order would take most of the time, and orders are compared as they are."""


def run_report(
    path: Path,
    output: Path,
    config: PlanConfig | None,
    gpu: GpuConfig,
    rules: SimulateRules,
    strategies: str,
    workers: int | None,
) -> None:
    """Write the page of a packed set, a plan, a token store or lengths.

    Args:
        config: how to plan lengths; None for what is planned already, and for lengths alone.
        gpu: the options that predict times.
        strategies: as `hbpack compare --strategies` takes them, or `NO_STRATEGIES`.

    Raises:
        ConfigError, InputError, FormatError, RunError: as `stats_of`, and the simulation and comparison.
    """
    watch = Stopwatch()
    planned, samples, names = _find(path, config)
    stats = plan_figures_of(planned) if planned else sample_stats(samples, None)
    shown = None
    if planned is not None:
        shown = _planned(planned, samples, gpu, rules, strategies, workers or default_workers())
    facts = Facts(
        name=_name_of(path),
        lengths=planned.arrays.pieces.length if planned else samples.lengths,
        sources=Sources(names=_short(names), of_sample=samples.sources),
        values=stats.values(),
        planned=shown,
        made_from=_made_from(planned),
    )
    page = render(build_page(facts))
    with atomic_file(output) as file:
        file.write(page)
    say(f"wrote {str(output)!r}, {format_bytes(len(page))} ({watch})")


def _find(path: Path, config: PlanConfig | None) -> tuple[Planned | None, Samples, tuple[str, ...]]:
    """The plan at a path or that of its lengths, if any; the samples; and the names of their sources."""
    if path.name == PLAN_NAME and path.is_file():
        path = path.parent
    if config is None and (path / PLAN_NAME).exists():
        planned = read_planned(path, check=True)
        return planned, *_samples_of_set(path, planned)
    samples = require_samples(path)
    return None if config is None else plan_in_memory(samples, config), samples, _source_names(path)


def _planned(
    found: Planned,
    samples: Samples,
    gpu: GpuConfig,
    rules: SimulateRules,
    strategies: str,
    workers: int,
) -> PlanFacts:
    plan = found.arrays
    prediction = None
    if gpu.has_gpu_model:
        simulator = load_simulator(gpu, plan.num_gpus, rules)
        prediction = Prediction(
            simulator=simulator, result=plan_simulation(plan, simulator, found.baseline, found.padded)
        )
    comparison, why_not = None, ""
    if strategies == NO_STRATEGIES:
        why_not = GIVE_STRATEGIES
    elif STRATEGIES[found.config.strategy].plans_steps:
        why_not = f"Strategy {found.config.strategy} works out groups of its own, with which others cannot plan."
    else:
        comparison = _compared(found, samples, gpu, prediction, strategies, workers)
    return PlanFacts(
        plan=plan,
        config=found.config,
        rules=found.rules,
        counts=found.counts,
        metrics=found.metrics,
        baseline=found.baseline,
        prediction=prediction,
        comparison=comparison,
        why_not=why_not,
    )


def _compared(
    found: Planned,
    samples: Samples,
    gpu: GpuConfig,
    prediction: Prediction | None,
    strategies: str,
    workers: int,
) -> Comparison:
    """The plan beside other plans of its samples; it is the first row, with the figures that it has."""
    of_gpu = {name: getattr(gpu, name) for name in GpuConfig.model_fields}
    here = {"gpus": found.arrays.num_gpus, **{name: value for name, value in of_gpu.items() if value is not None}}
    config = found.config.model_copy(update=here).as_given()
    own = own_row(found.config)
    rows = [row for row in _other_rows(config, strategies, len(samples.lengths)) if not is_same_plan(row, own)]
    simulator = prediction.simulator if prediction else None
    comparison = compare(samples, config, rows, workers, simulator)
    figures = RowFigures(
        seconds=0.0,
        peak_bytes=None,
        cut_off=False,
        metrics=found.metrics,
        simulation=prediction.result.figures if prediction else None,
    )
    mine = ComparedRow(spec=own, error=None, figures=figures)
    return replace(comparison, rows=(mine, *comparison.rows))


def _other_rows(config: PlanConfig, strategies: str, num_samples: int) -> list[Row]:
    rows = strategy_rows(strategies, config)
    if STRATEGIES[config.strategy].packs_itself:
        return rows
    more = "+refine" if num_samples <= _MOST_REFINED else ""
    orders = parse_rows(",".join(f"/{order}{more}" for order in _ORDERS), config)
    orders = [replace(row, kind="balance", name=f"--balance {row.config.balance}") for row in orders]
    return rows + [row for row in orders if not any(is_same_plan(row, other) for other in rows)]


def _samples_of_set(path: Path, planned: Planned) -> tuple[Samples, tuple[str, ...]]:
    """The samples of a planned set and the names of their sources: of its token store or, without it, of its plan."""
    assert planned.header is not None
    store = store_of(path, planned.header)
    if (store / INDEX_NAME).exists():
        try:
            opened = TokenStore.open(store)
            if opened.index.fingerprint == planned.header.store_fingerprint:
                return samples_of_store(opened), tuple(source.name for source in opened.index.sources)
        except (FormatError, InputError):
            pass
    _, _, lengths = join(planned.arrays.pieces)
    return Samples(lengths=lengths), ()


def _source_names(path: Path) -> tuple[str, ...]:
    """The inputs of a token store, or of a set that holds one."""
    for folder in (path, path / "tokens"):
        if (folder / INDEX_NAME).exists():
            return tuple(source.name for source in TokenStore.open(folder).index.sources)
    return ()


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of inputs without the folders that all of them share."""
    parts = [name.split("/") for name in names]
    while parts and all(len(each) > 1 for each in parts) and len({each[0] for each in parts}) == 1:
        parts = [each[1:] for each in parts]
    return tuple("/".join(each) for each in parts)


def _name_of(path: Path) -> str:
    path = path.absolute() if isinstance(path, Path) else path
    return path.parent.name if path.name == "plan.arrow" else path.name


def _made_from(planned: Planned | None) -> tuple[tuple[str, str], ...]:
    """What a set says of itself."""
    if planned is None or planned.header is None:
        return ()
    facts: dict[str, Any] = {"plan": planned.header.fingerprint}
    manifest = planned.manifest
    if manifest is not None:
        facts |= {
            "packed set": manifest.fingerprint,
            "hbpack": manifest.hbpack_version,
            "tokenizer": manifest.tokenizer.get("name", ""),
            "sources": _listed([f"{each['name']} (weight {each['weight']:g})" for each in manifest.sources]),
            "libraries": _listed([f"{name} {version}" for name, version in manifest.library_versions.items()]),
        }
    if planned.group_choice is not None:
        from packer_cli.groups.auto import describe  # Only `auto` needs the search.

        facts["choice of groups"] = describe(planned.group_choice)
    facts["options"] = _listed(
        [f"{name.replace('_', '-')} {value}" for name, value in planned.config.decisions().items()
         if isinstance(value, (str, int, float))]
    )  # fmt: skip
    return tuple((name, str(value)) for name, value in facts.items() if value)


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items)
