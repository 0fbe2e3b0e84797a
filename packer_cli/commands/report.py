"""`report`: the facts about a plan or lengths, gathered for one page."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from packer_cli.commands.arguments import Lengths, StrPath, plan_config_of, refuse_given, takes
from packer_cli.commands.pack import PackedSet
from packer_cli.commands.planned import Plan, plan_in_memory, read_planned
from packer_cli.commands.samples import find, require_samples
from packer_cli.commands.simulate import simulate_plan
from packer_cli.commands.stats import unplanned_stats
from packer_cli.compare import Comparison, compare
from packer_cli.compare.outcome import PlanSimulation, compared_row
from packer_cli.compare.row_process import RowFigures
from packer_cli.compare.rows import Row, own_row_first, parse_rows, strategy_rows
from packer_cli.config import GpuConfig, PlanConfig, TrainConfig, WorkersConfig, validate
from packer_cli.config.fields import GIVE
from packer_cli.config.resolve import Resolved, build
from packer_cli.engine.local import default_workers
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.errors import ConfigError, FormatError, InputError
from packer_cli.files import atomic_file
from packer_cli.format.records import Hidden
from packer_cli.format.versions import plan_file, set_at
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.figures import Stats as FoundStats
from packer_cli.plan.packing.wrap_decompose import join
from packer_cli.remote.path import as_path
from packer_cli.report.advice import Facts, PlanFacts, Prediction
from packer_cli.report.build import build_page
from packer_cli.report.charts.base import Chart
from packer_cli.report.page import Page, Section, render
from packer_cli.shards.own_store import open_own_store
from packer_cli.sizes import counted, format_bytes
from packer_cli.tables.table import Result, Table
from packer_cli.tokens.index import StoreIndex, read_index
from packer_cli.tokens.samples import StoreSamples

if TYPE_CHECKING:
    from packer_cli.commands.option_types import CallOfReport


NO_STRATEGIES = "none"
"""The value of `--strategies` that compares nothing."""
GIVE_STRATEGIES = "Other strategies are compared with --strategies all, or with a list of their names."
_ORDERS = ("none", "window:4", "window:16", "window:64", "sort")
_MOST_REFINED = 300_000
"""Most samples whose orders are refined; for more, that would take most of the time."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Result):
    """Result of `hbpack report`: `charts` by name, which a notebook draws one by one, and the next steps to try."""

    facts: Hidden[Facts]
    """Facts: lengths, the plan, its prediction, and the comparison with other plans."""
    page: Hidden[Page]
    """Contents of the page: title, summary, tiles and sections."""
    output: str | None = None
    """The file of the page; None if it was not written."""
    num_bytes: int | None = None
    """Size of the file."""
    next_steps: tuple[str, ...]
    """Next steps to try, the most important first."""
    sections: tuple[Section, ...]
    """The sections of the page."""
    stats: FoundStats
    """Figures, as `hbpack stats` has them."""
    simulation: PlanSimulation | None = None
    """Prediction, as `hbpack simulate` has it; None without predicted times."""
    comparison: Comparison | None = None
    """Comparison with other plans of the samples, as `hbpack compare` has it; None if the plan is not compared."""

    @property
    def charts(self) -> dict[str, Chart]:
        """The charts by name, in the order of the page."""
        return {chart.name: chart for section in self.sections for chart in section.charts}

    def __repr__(self) -> str:
        return f"<Report on {self.page.title}: {counted(len(self.charts), 'chart')}: {', '.join(self.charts)}>"

    def _tables(self) -> Iterable[Table]:
        notes = (*self.next_steps, f"charts: {', '.join(self.charts)}")
        return [Table(title=self.page.title, header=("", "", ""), rows=self.page.tiles, notes=notes)]


@takes(PlanConfig, TrainConfig, WorkersConfig)
def report(
    plan: Plan | PackedSet | Lengths,
    *,
    output: StrPath | None = None,
    strategies: str = "all",
    **options: Unpack[CallOfReport],
) -> Report:
    """Draw charts of a packed set, a plan or lengths, and say what to try next, as `hbpack report` does.

    Args:
        plan: a plan, a packed set, or the path of either, shown as it is. Or lengths as the function `plan` takes
            them: with `groups` and `gpus` they are planned in memory; without, only the lengths are shown.
        output: page to write, replaced if it exists. By default, nothing is written.
        strategies: strategies to compare the plan with: `"all"`, `"none"`, or a list of names, such as
            `"balanced,hbp"`.
        options: `model` and `gpu`, or `profile`, for predicted times; `pad_to` and `step_seconds`; `workers`; for
            lengths, those of a plan.

    Raises:
        HbpackError: an option or a length is wrong, or the path holds no lengths.
    """
    gpu = validate(GpuConfig, options)
    if gpu.has_gpu_model:
        gpu.require_gpu_model("hbpack report")
    else:
        why = f"has no effect without predicted times; give {GIVE}, or leave it out"
        refuse_given(options, TrainConfig.model_fields, lambda name: f"{name} {why}")
    rules = validate(TrainConfig, options)
    workers = validate(WorkersConfig, options).workers or default_workers()
    (name, planned, samples, sources), watch = _subject(plan, plan_config_of(options)), Stopwatch()
    facts = Facts(
        name=name,
        lengths=planned.arrays.pieces.length if planned else samples.lengths,
        sources=_short(sources),
        source_of_sample=samples.sources,
        stats=planned.stats() if planned else unplanned_stats(samples),
        planned=_planned(planned, samples, gpu, rules, strategies, workers) if planned else None,
        made_from=_made_from(planned),
    )
    page, of_plan = build_page(facts), facts.planned
    found = Report(
        facts=facts,
        page=page,
        next_steps=page.next_steps,
        sections=page.sections,
        stats=facts.stats,
        simulation=of_plan.prediction.result if of_plan and of_plan.prediction else None,
        comparison=of_plan.comparison if of_plan else None,
    )
    if output is not None:
        html = render(found.page)
        with atomic_file(as_path(output)) as file:
            file.write(html)
        found = replace(found, output=str(output), num_bytes=len(html))
        say(f"wrote {str(output)!r}, {format_bytes(len(html))} ({watch})")
    return found


def _planned(
    found: Plan,
    samples: Samples,
    gpu: GpuConfig,
    rules: TrainConfig,
    strategies: str,
    workers: int,
) -> PlanFacts:
    plan = found.arrays
    prediction = None
    if gpu.has_gpu_model:
        simulator, result = simulate_plan(found, gpu, rules)
        prediction = Prediction(simulator=simulator, result=result)
    comparison, why_not = None, ""
    if strategies == NO_STRATEGIES:
        why_not = GIVE_STRATEGIES
    elif found.config.planner.finds_layouts:
        why_not = f"Strategy {found.config.strategy} works out groups of its own, with which others cannot plan."
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
    found: Plan,
    samples: Samples,
    gpu: GpuConfig,
    prediction: Prediction | None,
    strategies: str,
    workers: int,
) -> Comparison:
    """Compare the plan with other plans of its samples; the plan is the first row, with the figures that it has."""
    samples = samples.alone()
    here = {"gpus": found.arrays.num_gpus, **gpu.model_dump(exclude_none=True)}
    config = found.config.model_copy(update=here)
    base = build(config, found.config.with_others(**here))
    own, *others = own_row_first(_other_rows(base, strategies, len(samples.lengths), prediction), base)
    simulator = prediction.simulator if prediction else None
    comparison = compare(samples, config, others, workers, simulator)
    figures = RowFigures(
        seconds=None,
        peak_bytes=None,
        cut_off=False,
        overall=found.metrics.overall,
        groups=found.metrics.groups,
        simulation=simulator.figures(found.arrays) if simulator else None,
    )
    return replace(comparison, rows=(compared_row(own, figures), *comparison.rows))


def _other_rows(base: Resolved, strategies: str, num_samples: int, prediction: Prediction | None) -> list[Row]:
    rows = strategy_rows(strategies, base, model=prediction.simulator.model if prediction else None)
    if base.request.strategy.packs_itself:
        return rows
    more = "+refine" if num_samples <= _MOST_REFINED else ""
    orders = parse_rows(",".join(f"/{order}{more}" for order in _ORDERS), base)
    orders = [replace(row, kind="balance", name=f"--balance {row.config.balance}") for row in orders]
    return rows + orders


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    """Shorten the names of inputs by the folders that all of them share."""
    parts = [name.split("/") for name in names]
    while parts and all(len(each) > 1 for each in parts) and len({each[0] for each in parts}) == 1:
        parts = [each[1:] for each in parts]
    return tuple("/".join(each) for each in parts)


def _made_from(planned: Plan | None) -> tuple[tuple[str, str], ...]:
    """List the names and values of the facts that a set keeps about itself."""
    if planned is None or planned.header is None:
        return ()
    facts = {"plan": planned.header.fingerprint}
    manifest = planned.manifest
    if manifest is not None:
        facts |= {
            "packed set": manifest.fingerprint,
            "hbpack": manifest.hbpack_version,
            "tokenizer": manifest.tokenizer.name or "",
            "sources": ", ".join(f"{each.name} (weight {each.weight:g})" for each in manifest.sources),
            "libraries": ", ".join(f"{name} {version}" for name, version in manifest.library_versions.items()),
        }
    if planned.group_choice is not None:
        from packer_cli.groups.auto import describe  # Only `auto` needs the search.

        facts["choice of groups"] = describe(planned.group_choice)
    facts["packages"] = ", ".join(sorted({*(planned.config.packages or {}).values()}))
    facts["options"] = ", ".join(
        f"{name.replace('_', '-')} {value}"
        for name, value in planned.config.decisions().items()
        if isinstance(value, (str, int, float))
    )
    return tuple((name, value) for name, value in facts.items() if value)


def _subject(given: Any, config: PlanConfig | None) -> tuple[str, Plan | None, Samples, tuple[str, ...]]:
    """Find the subject: a plan, a packed set or a path, shown as it is; or lengths.

    Args:
        config: options that plan lengths; None for a subject that is planned already, and for lengths alone.

    Returns:
        Its name, as the user gave it; the plan, None if only lengths are known; the samples; the names of the inputs,
        none where they are not known.
    """
    if isinstance(given, Plan):
        if config is not None:
            raise ConfigError("--groups is for making plans, and this is already planned; leave it out")
        return "Plan", given, given.samples or _samples_of_plan(given), ()
    found = find(str(given.path) if isinstance(given, PackedSet) else given, "report")
    if found.kind == "given":
        name = "Lengths" if config is None else "Plan"
    else:
        name = (found.path.absolute() if isinstance(found.path, Path) else found.path).name
    if config is None and found.has_plan:
        plan = read_planned(found.path, check=True)
        return name, plan, *_samples_of_set(found.path, plan)
    samples = require_samples(found)
    sources = () if found.store is None else _names(read_index(found.store))
    return name, None if config is None else plan_in_memory(samples, config), samples, sources


def _samples_of_set(path: Path, planned: Plan) -> tuple[Samples, tuple[str, ...]]:
    """Return the samples of a set, and the names of its inputs; without its token store, what its plan says."""
    assert planned.header is not None
    with suppress(FormatError, InputError):
        store = open_own_store(set_at(path) if planned.manifest else plan_file(path).parent, planned.header)
        config = planned.header.config
        return StoreSamples(store).of(config), _names(store.index)
    return _samples_of_plan(planned), ()


def _names(index: StoreIndex) -> tuple[str, ...]:
    return tuple(source.name for source in index.sources)


def _samples_of_plan(planned: Plan) -> Samples:
    _, _, lengths = join(planned.arrays.pieces)
    return Samples(lengths=lengths)
