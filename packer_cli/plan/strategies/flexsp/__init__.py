"""FlexSP (arXiv 2412.01523) and beyond: iterations whose groups of GPUs have unlike degrees.

::

    costs.py        what all parts plan by: seconds and capacity of each degree
    micro_batch.py  the degrees and samples of one micro-batch, by search, with kernels in
                    dealing.py and degree_sets.py
    milp.py         the same by integer programming, exact, for small batches
    buckets.py      length buckets of the least rounding, for the integer program
    batches.py      FlexSP as published: one batch at a time
    data_set.py     the whole data set at once: packing.py, then iterations.py
"""

from packer_cli.plan.strategies.flexsp.batches import PlannedBatches, plan_batches
from packer_cli.plan.strategies.flexsp.buckets import Buckets, make_buckets
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.strategies.flexsp.data_set import least_total_seconds, plan_data_set
from packer_cli.plan.strategies.flexsp.iterations import MixedIterations, iteration_seconds
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch, solve_micro_batch
from packer_cli.plan.strategies.flexsp.milp import ExactMicroBatch, solve_exactly

__all__ = [
    "Buckets",
    "DegreeCosts",
    "ExactMicroBatch",
    "MicroBatch",
    "MixedIterations",
    "PlannedBatches",
    "iteration_seconds",
    "least_total_seconds",
    "make_buckets",
    "plan_batches",
    "plan_data_set",
    "solve_exactly",
    "solve_micro_batch",
]
