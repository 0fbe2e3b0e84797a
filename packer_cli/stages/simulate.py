"""The simulate stage: the predicted epoch of a packed set or of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packer_cli.compare.savings import PlanSimulation, plan_simulation
from packer_cli.config import GpuConfig
from packer_cli.config.gpu_model import load_gpu_model
from packer_cli.config.rules import plan_rules
from packer_cli.errors import UsageError
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import read_plan, read_plan_header
from packer_cli.simulate.figures import SimulateRules, Simulator
from packer_cli.stages.rebalance import plan_in_force


def run_simulate(path: Path, config: GpuConfig, rules: SimulateRules) -> PlanSimulation:
    """Predict an epoch of a packed set, after any rebalance, or of a plan."""
    file = path / PLAN_NAME if path.is_dir() else path
    config_of_plan = read_plan_header(file).config
    is_rebalanced = (file.parent / MANIFEST_NAME).exists() and bool(read_manifest(file.parent).history)
    plan = plan_in_force(file.parent) if is_rebalanced else read_plan(file, check=True)[0]
    simulator = load_simulator(config, plan.num_gpus, rules)
    return plan_simulation(plan, simulator, replace(plan_rules(config_of_plan), num_gpus=plan.num_gpus))


def predict_plan(folder: Path, config: GpuConfig) -> PlanSimulation | None:
    """The prediction for the plan in a folder; None if the options name no model that can predict it."""
    if not config.has_gpu_model:
        return None
    try:
        return run_simulate(folder, config, SimulateRules())
    except UsageError:  # Too few rows of a profile, a degree that it lacks, or a file that is gone.
        return None


def load_simulator(config: GpuConfig, num_gpus: int, rules: SimulateRules) -> Simulator:
    """The simulator with the model that the options name; all pipeline stages share its weights."""
    model = load_gpu_model(config, num_gpus, "a prediction of time")
    return Simulator(model=model, rules=rules)
