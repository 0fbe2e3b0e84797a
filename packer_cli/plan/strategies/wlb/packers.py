"""The packers that `--packing` names with `--strategy wlb` and its baselines, and their options.

Micro-batches of at most W tokens, as trainers run them: WLB-LLM's baselines (arXiv 2503.17924, section 3.3).
`as_it_comes` is what a trainer does without planning. The others pack a window of several global batches at a time,
longest document first, each to the micro-batch of least attention work that has room. A window has as many tokens as
its micro-batches hold, which whole documents rarely fill exactly, and the paper does not say what becomes of the rest.
Here it joins the next window. The rest are the shortest documents, so a few of the very short ones wait for long.

All packers take the same arrivals, so that all do the same work: documents cut where global batches end, or, with
`cut=row`, where every row of W tokens ends, as loaders that concatenate do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer_cli.plan.core.cost import tokens_and_work
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids
from packer_cli.plan.kernels.balance import spread
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, within
from packer_cli.plan.packing.ilp.solver import TOLERANCE, add_variable, solve_program
from packer_cli.plan.packing.next_fit import next_fit
from packer_cli.plan.strategies.wlb import arrival
from packer_cli.sizes import parse_tokens

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class StepOptions(PackingOptions):
    """Options of every packer."""

    micro_batches: int = within(0, 0, 2**20 - 1)
    """Micro-batches of a replica in a step; 0 for those of --global-tokens or, without it, as many as its pipeline has
    stages. More micro-batches leave the pipeline fewer bubbles and make steps larger."""
    cut: str = "step"
    """Cut of arriving documents: where a `step` ends, or a `row`, which takes attention work from long ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("cut", self.cut in ("step", "row"), "be step or row")

    def capacities(self, window: int) -> list[int]:
        """Return the most tokens of a micro-batch: several, rising, to choose from."""
        return [window]

    def in_step(self, group: Group, num_replicas: int, global_tokens: int | None) -> int:
        """Count a replica's micro-batches in a step, of rows as long as the window; a multiple that pipelines want."""
        number = self.micro_batches or group.pp_size
        if global_tokens is not None and not self.micro_batches:
            number = max(1, round(global_tokens / (group.capacity * num_replicas)))
        multiple = group.pp_size if group.vpp_size > 1 else 1
        return -(-number // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class DelayOptions(StepOptions):
    """More queues even out better and delay more."""

    queues: str = AUTO
    """Queues for long documents, 0 to 3; `auto` for the number that evens out best."""
    thresholds: str = AUTO
    """Lengths from which documents wait, each with a queue of its own, such as 32k+64k; `auto` to tune them."""
    delay: float = 0.5
    """Most steps that a token may wait on average, where thresholds are tuned."""
    s_max: str = AUTO
    """Most tokens of a micro-batch, or several such as 128k+160k to choose from by predicted time; `auto` for five
    between the window and what fits in memory or, without a model, two windows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = (AUTO, *map(str, range(arrival.MOST_QUEUES + 1)))
        self.require("queues", self.queues in numbers, f"be {AUTO} or 0 to {arrival.MOST_QUEUES}", "delay")
        self.require("delay", 0 <= self.delay < float("inf"), "be a number of steps, at least 0", "delay")
        lengths = self._lengths("thresholds", "32k+64k")
        if lengths and self.queues not in (AUTO, str(len(lengths))):
            raise ValueError(
                f"option 'thresholds' of packing 'delay' makes {len(lengths)} queues, not {self.queues}; leave out "
                "'queues'"
            )
        self._lengths("s_max", "192k")

    def _lengths(self, name: str, example: str = "") -> list[int]:
        """Parse the tokens that an option names, at least one; none for `auto`. Raises ValueError unless they rise."""
        text = getattr(self, name)
        if text == AUTO:
            return []
        try:
            lengths = [parse_tokens(part) for part in text.split("+")]
        except ValueError:
            lengths = [0]
        are_fine = min(lengths) >= 1 and max(lengths) < 2**31
        self.require(name, are_fine, f"be {AUTO} or tokens such as {example}", "delay")
        self.require(name, lengths == sorted(set(lengths)), "rise", "delay")
        return lengths

    def capacities(self, window: int) -> list[int]:
        """Return the capacities that memory holds, not the context window's alone."""
        return self._lengths("s_max") or [2 * window if 2 * window < 2**31 else window]

    def find_thresholds(self, arrivals: arrival.Arrivals, capacity: int) -> Int64Array:
        """Return the thresholds (int64[n]), tuned if none are given."""
        if self.thresholds != AUTO:
            return np.array(self._lengths("thresholds"), dtype=np.int64)
        number = None if self.queues == AUTO else int(self.queues)
        return arrival.tune_thresholds(arrivals, capacity, self.delay, number)


@dataclass(frozen=True, kw_only=True)
class GreedyOptions(StepOptions):
    """More batches even out better and move documents further from where a stream would bring them."""

    batches: int = within(1, 1, 2**20 - 1)
    """Global batches that are packed together."""


@dataclass(frozen=True, kw_only=True)
class SolverOptions(GreedyOptions):
    """The program's size grows with the square of the batches."""

    time_limit: float = within(10.0, 0, 86400, is_open=True)
    """Seconds for each window; the answer of one that is cut off depends on the machine."""


@dataclass(frozen=True, kw_only=True)
class StepPacker(PackingAlgorithm):
    """One way to fill the micro-batches of each step.

    `pack` is (arrivals, options, most tokens of a micro-batch) -> steps; processes of `compare` find it by its name.
    """

    options: type[PackingOptions] = StepOptions
    deals: bool = True
    """Whether the micro-batches of a step are dealt to the replicas by time, and not as they come."""


def pack_with_delay(arrivals: arrival.Arrivals, options: DelayOptions, capacity: int) -> arrival.PackedSteps:
    """Pack by WLB-LLM's algorithm 1, see `arrival`."""
    return arrival.pack_with_queues(arrivals, capacity, options.find_thresholds(arrivals, capacity))


def as_it_comes(arrivals: arrival.Arrivals, options: StepOptions, capacity: int) -> arrival.PackedSteps:
    """Fill one row after another; a document that would reach over its end begins the next. O(m).

    A step has the next N rows, so nothing arrives early or late.
    """
    begins = next_fit(arrivals.lengths, arrivals.window)
    row_of = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
    return arrival.PackedSteps(row_of, row_of // arrivals.num_micro_batches)


def pack_in_windows(arrivals: arrival.Arrivals, options: GreedyOptions, capacity: int) -> arrival.PackedSteps:
    """Pack windows of so many global batches. O(m N batches), or as long as the program takes."""
    lengths, batches, num_micro_batches = arrivals.lengths, arrivals.batches, arrivals.num_micro_batches
    row_of, is_carried = np.empty(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.bool_)
    left = np.empty(0, dtype=np.int64)
    batch = step = 0
    state = rng_state(arrivals.seed, Stream.ARRIVAL, 1)
    while batch < arrivals.num_batches or len(left):
        until = min(batch + options.batches, arrivals.num_batches)
        num_steps = until - batch
        if not num_steps:
            of_step = num_micro_batches * arrivals.window
            num_steps = min(options.batches, -(-int(lengths[left].sum(dtype=np.int64)) // of_step))
        documents = np.concatenate([left, np.arange(batches[batch], batches[until])])
        documents = documents[np.argsort(-lengths[documents], kind="stable")]
        falling, num_rows = as_ids(np.arange(len(documents))), num_steps * num_micro_batches
        work = np.square(lengths[documents], dtype=np.int64)
        row = spread(lengths[documents], work, falling, arrivals.window, num_rows, evens_tokens=False).astype(np.int64)
        is_dealt = row >= 0
        left, dealt = documents[~is_dealt], documents[is_dealt]
        is_carried[left] = True
        row = _by_falling_work(lengths[dealt], row[is_dealt])
        if isinstance(options, SolverOptions):
            row = _solved(arrivals, lengths[dealt], row, num_rows, options.time_limit)
        num_steps = int(row.max()) // num_micro_batches + 1
        # Else each window would begin with its longest documents.
        position = shuffled(num_steps, state).astype(np.int64)
        row_of[dealt] = (step + position[row // num_micro_batches]) * num_micro_batches + row % num_micro_batches
        batch, step = until, step + num_steps
    return arrival.PackedSteps(row_of, arrivals.batch_of, int(is_carried.sum()))


def _solved(
    arrivals: arrival.Arrivals, lengths: Int32Array, row_of: Int64Array, num_rows: int, time_limit: float
) -> Int64Array:
    """Deal the documents of a window again by the integer program, `min_max_work`.

    It minimises the greatest attention work of a window, and leaves the other micro-batches as they happen to be below
    it. Where its steps are no more even, those of greed stand. Price: exponential, up to `time_limit` seconds.
    """
    solved = _by_falling_work(lengths, min_max_work(lengths, row_of, num_rows, arrivals.window, time_limit))
    greedy, exact = (arrival.imbalances(arrivals, lengths, rows).sum() for rows in (row_of, solved))
    return solved if exact < greedy else row_of


def _by_falling_work(lengths: Int32Array, row_of: Int64Array) -> Int64Array:
    """Renumber the rows (int64[n]) by falling attention work, so that those of a step are alike; empty ones last."""
    _, work = tokens_and_work(row_of, lengths, int(row_of.max(initial=-1)) + 1)
    number = np.empty(len(work), dtype=np.int64)
    number[np.argsort(-work, kind="stable")] = np.arange(len(work))
    return number[row_of]


def min_max_work(
    lengths: Int32Array, start: Int64Array, num_packs: int, capacity: int, time_limit: float = 60.0
) -> Int64Array:
    """Find the pack (int64[n]) of each sample, with the least greatest work, or the best so far at the time limit.

    WLB-LLM's eq. 1: minimise the greatest work of a pack (sum of s^2), each sample in one pack, each pack within its
    capacity. Packs may be empty, for instance if there are fewer samples than packs. Price: exponential; samples *
    packs binary variables. Longest-first dealing is usually within a few thousandths of the optimum, and the gain
    rarely pays for the program's time: this is to see how far a heuristic is from it, on about 100 samples.

    Args:
        lengths: int32[n], falling, each 1 .. capacity; about 100.
        start: int64[n], the pack of each sample in some answer, which stands where none is better.
        num_packs: packs to fill, at least 1.
        capacity: most tokens of a pack.
        time_limit: seconds. A run that ends earlier gives the same answer everywhere; the answer of one that is cut
            off depends on the machine.
    """
    import pulp

    work = lengths.astype(np.int64) ** 2
    best = int(tokens_and_work(start, lengths, num_packs)[1].max())
    # Some pack does the mean, one has the longest sample, and two of any num_packs + 1 samples share one.
    pair = work[num_packs - 1 : num_packs + 1].sum() if len(work) > num_packs else 0
    bound = max(-(-int(work.sum()) // num_packs), int(work.max(initial=0)), int(pair))
    if best <= bound:
        return start
    # A sample of 128K tokens has a work of 1.7e10, which solver tolerances are not made for; scale to at most 1.
    scale = int(work[0])
    problem = pulp.LpProblem("work", pulp.LpMinimize)
    greatest = add_variable(problem, "greatest", lowBound=bound / scale * (1 - TOLERANCE), upBound=best / scale)
    problem += greatest
    # Packs are interchangeable: the longest sample is in pack 0, the next in pack 0 or 1, and so on.
    held = [
        [add_variable(problem, f"x{i:05d}_{j:05d}", cat=pulp.LpBinary) for j in range(min(i + 1, num_packs))]
        for i in range(len(lengths))
    ]
    for of_sample in held:
        problem += pulp.lpSum(of_sample) == 1
    for j in range(num_packs):
        column = {i: held[i][j] for i in range(j, len(lengths))}
        share = {variable: int(lengths[i]) / capacity for i, variable in column.items()}
        load = {variable: int(work[i]) / scale for i, variable in column.items()}
        problem += pulp.LpAffineExpression(share) <= 1
        problem += pulp.LpAffineExpression({**load, greatest: -1}) <= 0
    if not solve_program(problem, time_limit):
        return start
    found = np.array([np.argmax([variable.varValue or 0 for variable in of_sample]) for of_sample in held])
    tokens, of_packs = tokens_and_work(found, lengths, num_packs)
    return found if tokens.max() <= capacity and of_packs.max() < best else start


REGISTRY: dict[str, StepPacker] = {
    packer.name: packer
    for packer in (
        StepPacker(
            name="delay",
            summary="micro-batches of equal work, long documents wait for each other (WLB-LLM's algorithm 1)",
            pack=pack_with_delay,
            options=DelayOptions,
        ),
        StepPacker(
            name="original",
            summary="baseline: the stream as it comes, row by row",
            pack=as_it_comes,
            deals=False,
        ),
        StepPacker(
            name="greedy",
            summary="baseline: windows of `batches` global batches, longest first to the least work",
            pack=pack_in_windows,
            options=GreedyOptions,
        ),
        StepPacker(
            name="solver",
            summary="baseline: the same windows, dealt by an integer program; slow",
            pack=pack_in_windows,
            options=SolverOptions,
        ),
    )
}
