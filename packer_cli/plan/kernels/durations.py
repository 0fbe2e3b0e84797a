"""Durations by simulation: of a pipeline (1F1B, plain or interleaved), and of a step whose replicas meet at its end.

A stage runs some forward passes ahead, then takes turns, one forward, one backward. Each pass starts once the stage
has done the pass before and, forward, the stage before it has passed on the micro-batch, or backward, the one behind
it. All stages take equally long for a micro-batch. Sources: Narayanan et al. (arXiv 2104.04473), section 2.2; the
order of interleaved passes and the number ahead are those of Megatron-LM's `pipeline_parallel/schedules.py`, which
wants a multiple of P micro-batches there: empty ones complete them. For equal micro-batches of t seconds on P stages
of v parts it is `sum t + (P - 1) t / v`; WLB-LLM and Hydraulis plan by `sum t + (P - 1) max t`.
"""

from __future__ import annotations

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.types import Float64Array, Int64Array


@njit(cache=True)
def pipeline_seconds(
    offsets: Int64Array, seconds: Float64Array, forward: Float64Array, num_stages: Int64Array, num_parts: Int64Array
) -> Float64Array:
    """Simulate the seconds (float64[r]) of each of r pipelines. Price: 20 ns for each micro-batch, stage and part.

    Args:
        offsets: int64[r+1]: pipeline i runs the micro-batches `offsets[i] .. offsets[i+1] - 1`, in this order.
        seconds: float64[k], of each on one stage, forward and backward.
        forward: float64[k], share of the forward pass.
        num_stages: int64[r], of each pipeline.
        num_parts: int64[r], into which each of its stages is divided (interleaved); 1 for plain 1F1B.
    """
    done = np.zeros(len(num_stages))
    for i in range(len(done)):
        begin, end = offsets[i], offsets[i + 1]
        if num_stages[i] == 1:
            for k in range(begin, end):
                done[i] += seconds[k]
        elif end > begin:
            done[i] = _run_one(seconds[begin:end], forward[begin:end], num_stages[i], num_parts[i])
    return done


@njit(cache=True)
def _run_one(seconds: Float64Array, forward: Float64Array, stages: int, parts: int) -> float:
    given = len(seconds)
    num = given if parts == 1 else -(-given // stages) * stages
    passes = num * parts  # Of a stage, in each direction.
    ends = np.full((2, stages * parts, num), np.inf)  # Of each pass: forward or backward, part of the model.
    count = np.zeros((stages, 2), dtype=np.int64)  # Passes done by each stage.
    free = np.zeros(stages)
    left = 2 * passes * stages
    while left:
        for stage in range(stages):
            while count[stage, 1] < passes:
                ahead = stages - stage - 1
                if parts > 1:
                    ahead = 2 * ahead + (parts - 1) * stages
                is_backward = count[stage, 0] == passes or count[stage, 0] > count[stage, 1] + ahead
                way = 1 if is_backward else 0
                part, number = _pass(count[stage, way], num, stages, parts)
                if is_backward:
                    part = parts - 1 - part
                place = part * stages + stage
                ready = free[stage]
                if is_backward:
                    behind = ends[1, place + 1, number] if place + 1 < stages * parts else ends[0, place, number]
                    ready = max(ready, behind)
                elif place:
                    ready = max(ready, ends[0, place - 1, number])
                if ready == np.inf:
                    break
                if number < given:
                    share = 1 - forward[number] if is_backward else forward[number]
                    ready += share * seconds[number] / parts
                free[stage] = ends[way, place, number] = ready
                count[stage, way] += 1
                left -= 1
    return float(free.max())


@njit(cache=True)
def _pass(k: int, num: int, stages: int, parts: int) -> tuple[int, int]:
    """Return the part and micro-batch of a stage's k-th pass.

    Stages run part 0 for as many micro-batches as there are stages, then part 1, ...
    """
    of_round = stages * parts
    first = k // of_round * stages
    size = min(stages, num - first)
    within = k - first * parts
    return within // size, first + within % size


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
