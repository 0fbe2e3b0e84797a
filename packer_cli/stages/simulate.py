"""The simulate stage: the predicted epoch of a packed set or of a plan."""

from __future__ import annotations

from packer_cli.compare.savings import PlanSimulation, plan_simulation
from packer_cli.config import GpuConfig
from packer_cli.config.gpu_model import load_gpu_model
from packer_cli.simulate.figures import SimulateRules, Simulator
from packer_cli.stages.planned import Planned


def run_simulate(planned: Planned, config: GpuConfig, rules: SimulateRules) -> PlanSimulation:
    """Predict an epoch of a plan."""
    plan = planned.arrays
    return plan_simulation(plan, load_simulator(config, plan.num_gpus, rules), planned.rules)


def load_simulator(config: GpuConfig, num_gpus: int, rules: SimulateRules) -> Simulator:
    """The simulator with the model that the options name; all pipeline stages share its weights."""
    model = load_gpu_model(config, num_gpus, "a prediction of time")
    return Simulator(model=model, rules=rules)
