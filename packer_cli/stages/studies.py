"""What looks at lengths and at plans, and leaves nothing behind: compare, groups, simulate."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer_cli.config import GpuConfig, PlanConfig, TokenizeConfig
from packer_cli.engine.local import LocalEngine, default_workers, make_engine
from packer_cli.engine.progress import Stopwatch, say
from packer_cli.errors import TooManyRejectedError
from packer_cli.shards.manifest import MANIFEST_NAME, read_manifest
from packer_cli.shards.plan_file import PLAN_NAME, read_plan, read_plan_header
from packer_cli.sizes import counted
from packer_cli.stages.output import TOKENS
from packer_cli.stages.pipeline import tokenize_corpus, with_known_groups

if TYPE_CHECKING:
    from packer_cli.groups.choice import Choice
    from packer_cli.plan.samples import Samples
    from packer_cli.simulate.figures import SimulateRules, Simulator


def run_compare(
    inputs: Sequence[str],
    corpus: TokenizeConfig | None,
    config: PlanConfig,
    algorithms: str | None,
    workers: int | None,
    rules: SimulateRules | None = None,
    *,
    by_program: bool = False,
) -> dict[str, Any]:
    """Plan the same samples once for each row. A corpus is tokenized into a folder that goes again.

    Where the options name a model of time, each row's epoch is predicted.

    Args:
        rules: simulate by these, beside HBP's baseline.
        by_program: prove the least packs by the linear program too.
    """
    from packer_cli.compare import compare
    from packer_cli.compare.rows import default_rows, parse_rows, with_baseline
    from packer_cli.compare.savings import add_savings
    from packer_cli.config.rules import plan_rules, with_known_cost
    from packer_cli.cost.options import has_gpu_model
    from packer_cli.simulate.figures import SimulateRules
    from packer_cli.stages.groups import stand_in

    config = with_known_cost(config)
    likely = stand_in(config)
    plan_rules(likely)  # What is wrong with the options is said before the long work.
    if algorithms is not None:
        parse_rows(algorithms, likely)
    has_model = rules is not None or has_gpu_model(config.model, config.gpu, config.profile)
    simulator = _simulator(config, config.gpus, rules or SimulateRules()) if has_model else None
    workers = workers or default_workers()
    samples = _read_samples(inputs, corpus, workers)
    config, choice = with_known_groups(config, lambda: samples)
    rows = default_rows(config) if algorithms is None else parse_rows(algorithms, config)
    baseline = None
    if rules is not None:
        rows, baseline = with_baseline(rows, config)
    watch = Stopwatch()
    comparison = compare(samples, config, rows, workers, simulator, by_program=by_program)
    if baseline is not None:
        add_savings(comparison, baseline)
    if choice is not None:
        comparison["group_choice"] = choice
    say(
        f"compared {counted(len(rows), 'plan')} of {counted(len(samples.lengths), 'sample')}, "
        f"{workers} at a time ({watch})"
    )
    return comparison


def run_groups(
    inputs: Sequence[str], corpus: TokenizeConfig | None, config: PlanConfig, workers: int | None
) -> tuple[Choice, dict[str, Any]]:
    """Choose groups for the samples of an epoch: the choice, and what a plan would record of it."""
    from packer_cli.stages.groups import choose, load_models

    load_models(config, config.gpus, "hbpack groups")  # What is wrong with the options is said before the long work.
    samples = _read_samples(inputs, corpus, workers)
    return choose(config, samples.epoch_lengths(config.seed), config.gpus, config.overflow, "hbpack groups")


def run_simulate(path: Path, config: GpuConfig, rules: SimulateRules) -> dict[str, Any]:
    """Predict an epoch of a packed set as it is now, or of a plan."""
    from packer_cli.compare.savings import plan_simulation
    from packer_cli.stages.rebalance import plan_in_force

    file = path / PLAN_NAME if path.is_dir() else path
    header = read_plan_header(file)
    is_rebalanced = (file.parent / MANIFEST_NAME).exists() and bool(read_manifest(file.parent).history)
    plan = plan_in_force(file.parent) if is_rebalanced else read_plan(file, check=True)[0]
    simulator = _simulator(config, plan.num_gpus, rules)
    return plan_simulation(plan, simulator, header["config"]["seed"], header["config"]["global_tokens"])


def _simulator(config: GpuConfig, num_gpus: int, rules: SimulateRules) -> Simulator:
    """What predicts with the model that the options name; all stages of a pipeline share its weights."""
    from packer_cli.cost.options import load_gpu_model
    from packer_cli.simulate.figures import Simulator

    model = load_gpu_model(config.model, config.gpu, config.profile, num_gpus * rules.pp, what="a prediction of time")
    return Simulator(model=model, rules=rules)


def _read_samples(inputs: Sequence[str], corpus: TokenizeConfig | None, workers: int | None) -> Samples:
    """Of what the inputs are; a corpus is tokenized."""
    from packer_cli.stages.samples import compared_samples, refuse_known_lengths

    if corpus is None:
        return compared_samples(inputs)
    refuse_known_lengths(inputs)
    with make_engine(workers) as engine:
        return _tokenized_samples(corpus, engine)


def _tokenized_samples(config: TokenizeConfig, engine: LocalEngine) -> Samples:
    from packer_cli.stages.samples import samples_of_store
    from packer_cli.tokens.store import TokenStore

    with tempfile.TemporaryDirectory(prefix="hbpack-tokens-") as name:
        try:
            tokenize_corpus(config, Path(name) / "out", engine)
        except TooManyRejectedError:
            raise TooManyRejectedError(
                f"more records were rejected than --max-rejected {config.max_rejected}; hbpack tokenize keeps the "
                "reasons, or raise the limit"
            ) from None
        return samples_of_store(TokenStore.open(Path(name) / "out" / TOKENS))
