"""All names that a strategy of your own needs; docs/extending.md has two whole ones.

- It extends `GroupStrategy`, or `Strategy`, of which `plan` and `rest` get a `PlanRequest`: groups, GPUs and options
  as numbers.
- `Pieces` are the samples, cut and in the order of the data; a group's `align` rounds up their lengths (`align_up`).
  `shuffled(n, rng_state(seed, Stream.ARRIVAL))` is a seeded order of arrival.
- Packs are offsets (int64[p + 1]) into an array of pieces (int32[m]), and the group (int64[p]) of each, in any order:
  `make_packs` makes them, and `pack_sizes` adds up what they hold.
- `GroupCosts` predicts their seconds, where the strategy `needs` a cost model.
- Iterations say which packs run side by side: `deal` and `one_group_each` where those of an iteration are of one
  group; `Slots` and `Iterations.of` where replicas of any kind stand on any GPUs.
- `assemble` makes the plan, with steps and orders as the options say, and `scheduled` an epoch of packs that are left.
"""

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import plan_tokens_and_work
from packer_cli.plan.core.iterations import Iterations, Slots, deal, one_group_each
from packer_cli.plan.core.segments import align_up
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER, Pieces, Plan, Schedule
from packer_cli.plan.strategies.assemble import assemble, make_packs, pack_sizes, scheduled
from packer_cli.plan.strategies.by_group.strategy import GroupStrategy
from packer_cli.plan.strategies.protocol import PlanRequest, Strategy, UnlikeDegrees

__all__ = [
    "FILLER", "GroupCosts", "GroupStrategy", "Iterations", "Pieces", "Plan", "PlanRequest",
    "Schedule", "Slots", "Strategy", "Stream", "UnlikeDegrees", "align_up", "assemble", "deal", "make_packs",
    "one_group_each", "pack_sizes", "plan_tokens_and_work", "rng_state", "scheduled", "shuffled",
]  # fmt: skip
