"""Which replica runs which micro-batch when: a step is an iteration, and all replicas have the same degrees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import round_up_rows
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER, Int64Array, Schedule, as_ids
from packer_cli.plan.strategies.wlb.dealing import deal_steps


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """p packs, each a micro-batch of its step."""

    pack: Int64Array
    """int64[p]: their numbers."""
    step: Int64Array
    """int64[p]: 0 .. s-1, rising, none left out."""
    times: NDArray[np.float64]
    """float64[p], on one stage of a pipeline, in any unit."""
    tokens: Int64Array
    """int64[p], aligned."""


def schedule_steps(
    micro_batches: MicroBatches, group: Group, num_gpus: int, most: int, seed: int, epoch: int = 0
) -> Schedule:
    """Deal the micro-batches of each step to the replicas. O(p log p), and see `dealing`.

    The seed decides which replica gets which share, so that none always ends last. A replica runs its longest
    micro-batch first, and a filler if it has none. Epochs above 0 run the steps in a seeded order.

    Args:
        group: of the packs; its degrees divide `num_gpus`.
        most: micro-batches of a replica in a step, enough for all.
    """
    step, num_replicas = micro_batches.step, group.num_dp_ranks(num_gpus)
    num_steps = int(step[-1]) + 1 if len(step) else 0
    offsets = np.searchsorted(step, np.arange(num_steps + 1))
    replica = deal_steps(offsets, micro_batches.times, num_replicas, most, group.pp_size)
    state = rng_state(seed, Stream.RANKS, epoch)
    names = np.array([shuffled(num_replicas, state) for _ in range(num_steps)], dtype=np.int64)
    replica = names.reshape(-1, num_replicas)[step, replica]
    if epoch:
        step = shuffled(num_steps, rng_state(seed, Stream.ORDER, epoch))[step].astype(np.int64)
    is_idle = np.ones((num_steps, num_replicas), dtype=np.bool_)
    is_idle[step, replica] = False
    idle_step, idle_replica = np.nonzero(is_idle)
    order = np.lexsort(
        (
            np.concatenate([-micro_batches.times, np.zeros(len(idle_step))]),
            np.concatenate([replica, idle_replica]),
            np.concatenate([step, idle_step]),
        )
    )
    tokens = np.concatenate([micro_batches.tokens, np.zeros(len(idle_step), dtype=np.int64)])
    return Schedule(
        slot_iteration=np.concatenate([step, idle_step])[order],
        slot_pack=as_ids(np.concatenate([micro_batches.pack, np.full(len(idle_step), FILLER)])[order]),
        slot_group=np.zeros(len(order), dtype=np.int16),
        slot_first_gpu=(np.concatenate([replica, idle_replica])[order] * group.num_gpus).astype(np.int32),
        slot_row_length=round_up_rows(tokens[order], [group], 0).astype(np.int32),
        iteration_step=np.arange(num_steps),
        step_window=np.zeros(num_steps, dtype=np.int32),
    )
