"""The report stage: what is known of a plan or lengths, gathered for one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packer_cli.commands.output import store_of
from packer_cli.commands.planned import Planned, plan_in_memory, read_planned
from packer_cli.commands.samples import require_samples
from packer_cli.commands.simulate import load_simulator
from packer_cli.commands.stats import plan_figures_of, sample_stats
from packer_cli.compare import Comparison, compare
from packer_cli.compare.compared import compared_row
from packer_cli.compare.row_figures import RowFigures
from packer_cli.compare.rows import Row, own_row_first, parse_rows, strategy_rows
from packer_cli.compare.savings import PlanSimulation, plan_simulation
from packer_cli.config import GpuConfig, PlanConfig
from packer_cli.config.resolve import Resolved, no_longer_plans, read_options
from packer_cli.engine.local import default_workers
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.errors import FormatError, InputError
from packer_cli.files import atomic_file
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.records import Hidden, in_json
from packer_cli.plan.core.pieces import Samples
from packer_cli.plan.figures import Stats
from packer_cli.plan.packing.wrap import join
from packer_cli.report.advice import Facts, PlanFacts, Prediction
from packer_cli.report.build import build_page
from packer_cli.report.charts.base import Chart
from packer_cli.report.page import Page, Section, render
from packer_cli.simulate.figures import EpochFigures, SimulateRules
from packer_cli.sizes import counted, format_bytes
from packer_cli.tables.result import Result
from packer_cli.tables.table import Table
from packer_cli.tokens.index import INDEX_NAME
from packer_cli.tokens.samples import StoreSamples
from packer_cli.tokens.store import TokenStore

NO_STRATEGIES = "none"
"""The value of `--strategies` that compares nothing."""
GIVE_STRATEGIES = "Other strategies are compared with --strategies all, or with a list of their names."
_ORDERS = ("none", "window:4", "window:16", "window:64", "sort")
_MOST_REFINED = 300_000
"""Samples; of more, refining every order would take most of the time, and orders are compared as they are."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Result):
    """What `hbpack report` shows: `charts` by name, which a notebook draws one by one, and what to try next."""

    facts: Hidden[Facts]
    """What is known: lengths, the plan, its prediction, and the comparison with other plans."""
    page: Hidden[Page]
    """What is shown: title, summary, tiles and sections."""
    output: str | None = None
    """The file of the page; None if it was not written."""
    num_bytes: int | None = None
    """Its size."""

    @property
    @in_json
    def next_steps(self) -> tuple[str, ...]:
        """What to try next, the most important first."""
        return self.page.next_steps

    @property
    def charts(self) -> dict[str, Chart]:
        """The charts by name, in the order of the page."""
        return {chart.name: chart for section in self.page.sections for chart in section.charts}

    @property
    @in_json
    def sections(self) -> tuple[Section, ...]:
        """The sections of the page."""
        return self.page.sections

    @property
    @in_json
    def stats(self) -> Stats:
        """As `hbpack stats` has it."""
        return self.facts.stats

    @property
    @in_json
    def simulation(self) -> PlanSimulation | None:
        """As `hbpack simulate` has it; None without predicted times."""
        planned = self.facts.planned
        return planned.prediction.result if planned and planned.prediction else None

    @property
    @in_json
    def comparison(self) -> Comparison | None:
        """The plan beside others of the same samples, as `hbpack compare` has it; None if it is not compared."""
        return self.facts.planned.comparison if self.facts.planned else None

    def __repr__(self) -> str:
        return f"<Report on {self.page.title}: {counted(len(self.charts), 'chart')}: {', '.join(self.charts)}>"

    def _tables(self) -> Iterable[Table]:
        rows = tuple((tile.label, tile.value, tile.text) for tile in self.page.tiles)
        notes = (*self.next_steps, f"charts: {', '.join(self.charts)}")
        return [Table(title=self.page.title, header=("", "", ""), rows=rows, notes=notes)]


def run_report(
    subject: Subject,
    gpu: GpuConfig,
    rules: SimulateRules,
    strategies: str,
    workers: int | None,
    output: Path | None = None,
) -> Report:
    """Gather what the page shows, and write it if an output is named.

    Args:
        gpu: the options that predict times.
        strategies: as `hbpack compare --strategies` takes them, or `NO_STRATEGIES`.

    Raises:
        ConfigError, FormatError, RunError: as the simulation and the comparison.
    """
    watch = Stopwatch()
    planned, samples = subject.planned, subject.samples
    stats = plan_figures_of(planned) if planned else sample_stats(samples, None)
    shown = None
    if planned is not None:
        shown = _planned(planned, samples, gpu, rules, strategies, workers or default_workers())
    facts = Facts(
        name=subject.name,
        lengths=planned.arrays.pieces.length if planned else samples.lengths,
        sources=_short(subject.sources),
        source_of_sample=samples.sources,
        stats=stats,
        planned=shown,
        made_from=_made_from(planned),
    )
    report = Report(facts=facts, page=build_page(facts))
    if output is not None:
        html = render(report.page)
        with atomic_file(output) as file:
            file.write(html)
        report = replace(report, output=str(output), num_bytes=len(html))
        say(f"wrote {str(output)!r}, {format_bytes(len(html))} ({watch})")
    return report


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
    elif found.config.planner.finds_layouts:
        why_not = f"Strategy {found.config.strategy} works out groups of its own, with which others cannot plan."
    elif gone := no_longer_plans(found.config):
        why_not = f"Other plans cannot be made as this one was: {gone}."
    else:
        comparison = _compared(found, samples, gpu, prediction, strategies, workers)
    return PlanFacts(
        plan=plan,
        config=found.config,
        request=found.request,
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
    samples = samples.alone()
    of_gpu = {name: getattr(gpu, name) for name in GpuConfig.model_fields}
    here = {"gpus": found.arrays.num_gpus, **{name: value for name, value in of_gpu.items() if value is not None}}
    config = found.config.model_copy(update=here)
    base = read_options(config, found.config.as_given(**here))
    own, *others = own_row_first(_other_rows(base, strategies, len(samples.lengths)), base)
    simulator = prediction.simulator if prediction else None
    comparison = compare(samples, config, others, workers, simulator)
    result = prediction.result if prediction else None
    epoch = result and EpochFigures(overall=result.overall, groups=result.groups, notes=result.notes)
    figures = RowFigures(
        seconds=None,
        peak_bytes=None,
        cut_off=False,
        overall=found.metrics.overall,
        groups=found.metrics.groups,
        simulation=epoch,
    )
    mine = compared_row(own, figures)
    return replace(comparison, rows=(mine, *comparison.rows))


def _other_rows(base: Resolved, strategies: str, num_samples: int) -> list[Row]:
    rows = strategy_rows(strategies, base)
    if base.request.strategy.packs_itself:
        return rows
    more = "+refine" if num_samples <= _MOST_REFINED else ""
    orders = parse_rows(",".join(f"/{order}{more}" for order in _ORDERS), base)
    orders = [replace(row, kind="balance", name=f"--balance {row.config.balance}") for row in orders]
    return rows + orders


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of inputs without the folders that all of them share."""
    parts = [name.split("/") for name in names]
    while parts and all(len(each) > 1 for each in parts) and len({each[0] for each in parts}) == 1:
        parts = [each[1:] for each in parts]
    return tuple("/".join(each) for each in parts)


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
    facts["packages"] = _listed([f"{package}" for package in sorted({*(planned.config.packages or {}).values()})])
    facts["options"] = _listed(
        [f"{name.replace('_', '-')} {value}" for name, value in planned.config.decisions().items()
         if isinstance(value, (str, int, float))]
    )  # fmt: skip
    return tuple((name, str(value)) for name, value in facts.items() if value)


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a report is about."""

    name: str
    """As the user gave it; the heading of the page."""
    planned: Planned | None
    """None: only lengths are known."""
    samples: Samples
    sources: tuple[str, ...] = ()
    """Names of the inputs; empty where they are not known."""


def subject_at(path: Path, config: PlanConfig | None) -> Subject:
    """A packed set, a plan, a token store or a file of lengths.

    Args:
        config: how to plan lengths; None for what is planned already, and for lengths alone.

    Raises:
        ConfigError, InputError, FormatError, RunError: as `stats_of`.
    """
    name = _name_of(path)
    if path.name == PLAN_NAME and path.is_file():
        path = path.parent
    if config is None and (path / PLAN_NAME).exists():
        found = read_planned(path, check=True)
        samples, sources = _samples_of_set(path, found)
        return Subject(name=name, planned=found, samples=samples, sources=sources)
    samples = require_samples(path)
    planned = None if config is None else plan_in_memory(samples, config)
    return Subject(name=name, planned=planned, samples=samples, sources=_source_names(path))


def subject_of_plan(planned: Planned) -> Subject:
    """A plan that was made or read before."""
    return Subject(name="Plan", planned=planned, samples=planned.samples or _samples_of_plan(planned))


def subject_of_samples(samples: Samples, config: PlanConfig | None) -> Subject:
    """Samples of which the lengths are at hand; see `subject_at`."""
    planned = None if config is None else plan_in_memory(samples, config)
    return Subject(name="Lengths" if planned is None else "Plan", planned=planned, samples=samples)


def _samples_of_set(path: Path, planned: Planned) -> tuple[Samples, tuple[str, ...]]:
    """The samples of a planned set and the names of their sources: of its token store or, without it, of its plan."""
    assert planned.header is not None
    store = store_of(path, planned.header)
    if (store / INDEX_NAME).exists():
        try:
            opened = TokenStore.open(store)
            if opened.index.fingerprint == planned.header.store_fingerprint:
                return StoreSamples(opened).of(planned.header.config), tuple(
                    source.name for source in opened.index.sources
                )
        except (FormatError, InputError):
            pass
    return _samples_of_plan(planned), ()


def _samples_of_plan(planned: Planned) -> Samples:
    _, _, lengths = join(planned.arrays.pieces)
    return Samples(lengths=lengths)


def _source_names(path: Path) -> tuple[str, ...]:
    """The inputs of a token store, or of a set that holds one."""
    for folder in (path, path / "tokens"):
        if (folder / INDEX_NAME).exists():
            return tuple(source.name for source in TokenStore.open(folder).index.sources)
    return ()


def _name_of(path: Path) -> str:
    path = path.absolute() if isinstance(path, Path) else path
    return path.parent.name if path.name == PLAN_NAME else path.name
