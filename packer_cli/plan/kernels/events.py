"""Duration of a step whose replicas meet at its end alone: an event simulation."""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.plan.core.types import Float64Array, Int64Array


@njit(cache=True)
def free_seconds(
    step: Int64Array, first_gpu: Int64Array, num_gpus: Int64Array, seconds: Float64Array, num_steps: int, gpus: int
) -> Float64Array:
    """Simulate the seconds (float64[s]) until the last GPU of each step is done. Price: O(GPUs of all replicas).

    A replica begins when each of its GPUs has done what it runs before, whatever the others do: where no micro-batch
    gathers weights, GPUs that change their replica wait for their new neighbors alone (ByteScale, arXiv 2502.21231,
    section 6).

    Args:
        step: int64[r], rising, of each run of a replica; those of a GPU are in the order in which it runs them.
        first_gpu, num_gpus: int64[r], of each.
        seconds: float64[r], of each.
        gpus: all of them.
    """
    done = np.zeros(num_steps)
    ready = np.zeros(gpus)
    for r in range(len(step)):
        if r and step[r] != step[r - 1]:
            ready[:] = 0.0
        own = slice(first_gpu[r], first_gpu[r] + num_gpus[r])
        end = ready[own].max() + seconds[r]
        ready[own] = end
        done[step[r]] = max(done[step[r]], end)
    return done
