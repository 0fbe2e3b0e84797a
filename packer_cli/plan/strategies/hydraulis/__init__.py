"""Hydraulis (arXiv 2412.07894): pipelines of unlike tensor, context and pipeline parallelism in each step.

::

    costs.py        what all parts plan by: seconds and capacity of each parallel scheme
    pipeline.py     the least time of a pipeline, from its samples' sums
    candidates.py   layouts of pipelines for the lengths of the data set, by dynamic program
    layouts.py      those that pay on the real steps
    stage1.py       the samples of each pipeline of a step
    stage2.py       the micro-batches of each pipeline; step.py: both stages
    programs.py     both by integer programming, exact, for few samples
    batches.py      the samples of each step; data_set.py: the whole data set
"""

from packer_cli.plan.strategies.hydraulis.batches import make_batches
from packer_cli.plan.strategies.hydraulis.candidates import Layouts, LengthTable, find_layouts, length_table
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.hydraulis.data_set import PlannedSteps, layouts_of, plan_data_set
from packer_cli.plan.strategies.hydraulis.layouts import ChosenLayouts, choose_layouts, kinds_of
from packer_cli.plan.strategies.hydraulis.programs import ExactStep, solve_pipeline, solve_step
from packer_cli.plan.strategies.hydraulis.stage2 import PipelinePlan, plan_pipeline
from packer_cli.plan.strategies.hydraulis.step import StepPlan, plan_step

__all__ = [
    "ChosenLayouts",
    "ExactStep",
    "Layouts",
    "LengthTable",
    "PipelinePlan",
    "PlannedSteps",
    "SchemeCosts",
    "StepPlan",
    "choose_layouts",
    "find_layouts",
    "kinds_of",
    "layouts_of",
    "length_table",
    "make_batches",
    "plan_data_set",
    "plan_pipeline",
    "plan_step",
    "solve_pipeline",
    "solve_step",
]
