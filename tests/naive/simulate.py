"""The plain twin of `simulate`: slot by slot, with the formulas of the docs written out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from packer_cli.cost.predict import GpuModel
from packer_cli.format.sharding import PLANNED
from packer_cli.plan.core.types import FILLER, Plan
from tests.naive import pipeline, sharding


@dataclass
class Slot:
    iteration: int
    first_gpu: int
    group: int
    num_gpus: int
    pp: int
    vpp: int
    forward: float
    parts: dict[str, float]
    """Seconds on a stage."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def simulate(plan: Plan, model: GpuModel, pad_to: str, step_seconds: float):
    """(seconds of iterations, seconds of steps, GPU-seconds by (group, part))."""
    schedule = plan.epochs[0]
    if plan.lockstep == 1:
        model = model.of_lockstep(1)
    slots = [_slot(plan, model, k, pad_to) for k in range(len(schedule.slot_pack))]
    num_gpus, shared = plan.num_gpus, plan.groups[0]
    iterations, forward, split, runs = [], [], defaultdict(float), []
    for i in range(schedule.num_iterations):
        members = [slot for slot in slots if slot.iteration == i]
        replicas = [
            [slot for slot in members if slot.first_gpu == gpu] for gpu in {slot.first_gpu for slot in members}
        ]
        times = []
        for replica in replicas:
            each = [slot.seconds for slot in replica]
            own = 0.0
            if plan.lockstep == 1:
                own = bubbles_of(each, [slot.forward for slot in replica], replica[0].pp, replica[0].vpp)
            times.append(sum(each) + own)
            split[replica[0].group, "bubbles"] += replica[0].num_gpus * own
        iterations.append(max(times))
        forward.append(max(zip(times, replicas, strict=True), key=lambda pair: pair[0])[1][0].forward)
        for replica, time in zip(replicas, times, strict=True):
            gpus = replica[0].num_gpus
            runs.append((i, range(replica[0].first_gpu, replica[0].first_gpu + gpus), time))
            for slot in replica:
                for part, value in slot.parts.items():
                    split[slot.group, part] += gpus * value
            split[replica[0].group, "waiting"] += gpus * (max(times) - time)
    steps, overlaps = [], 0.0
    for s in range(schedule.num_steps):
        members = [i for i in range(schedule.num_iterations) if schedule.iteration_step[i] == s]
        longest = max(members, key=lambda i: (iterations[i], i))
        bubbles = 0.0
        if plan.lockstep != 1:
            bubbles = bubbles_of(
                [iterations[i] for i in members], [forward[i] for i in members], shared.pp_size, shared.vpp_size
            )
        sync = max(sync_seconds(plan, model, slot.group) for slot in slots if slot.iteration in members)
        alone = sum(iterations[i] for i in members)
        done = alone
        if plan.lockstep is not None:
            done = events(of_shards([run for run in runs if run[0] in members], plan.lockstep))
        overlaps += alone - done
        steps.append(done + bubbles + sync + step_seconds)
        split[_longest(slots, longest), "bubbles"] += bubbles * num_gpus
        split[_longest(slots, longest), "sync"] += sync * num_gpus
        split[_longest(slots, longest), "steps"] += step_seconds * num_gpus
    waiting = {key: value for key, value in split.items() if key[1] == "waiting"}
    for key, value in waiting.items():
        if sum(waiting.values()) > 0:
            split[key] = value * (1 - overlaps * num_gpus / sum(waiting.values()))
    return iterations, steps, split


def events(runs):
    """When the last GPU is done: each run of (iteration, GPUs, seconds) begins when all of its GPUs are free."""
    free = defaultdict(float)
    for _, gpus, seconds in sorted(runs, key=lambda run: run[0]):
        end = max(free[gpu] for gpu in gpus) + seconds
        free |= dict.fromkeys(gpus, end)
    return max(free.values())


def of_shards(runs, num_gpus):
    """The runs of GPUs that share weights, which wait for each other; those of replicas where each has its own."""
    if num_gpus == 1:
        return runs
    found = defaultdict(float)
    for iteration, gpus, seconds in runs:
        shard = gpus[0] // num_gpus
        found[iteration, shard] = max(found[iteration, shard], seconds)
    return [(i, range(shard * num_gpus, (shard + 1) * num_gpus), seconds) for (i, shard), seconds in found.items()]


def bubbles_of(seconds, forward, stages, parts):
    """What a pipeline adds to its micro-batches one after another."""
    return pipeline.pipeline_seconds(seconds, forward, stages, parts) - sum(seconds)


def sync_seconds(plan: Plan, model: GpuModel, group: int) -> float:
    """Gradients and weights of a GPU's part, once a step over all GPUs that hold it."""
    sp, cp, tp, pp, _ = plan.groups[group].layout
    links, memory = model.cost.model_parallel, model.memory
    if links is not None and model.shard_gpus:
        number = model.num_gpus / model.shard_gpus
        near = max(1, links.gpus_per_node // model.shard_gpus)
        bandwidth = links.node_bandwidth
        if near < number and links.network_bandwidth:
            bandwidth = min(bandwidth, near * links.network_bandwidth)
        each = links.sync_bytes * memory.num_parameters / model.shard_gpus
        return each * (number - 1) / number / bandwidth if number > 1 else 0.0
    if links is None or (model.cost.gathers and tp == pp == 1):
        return 0.0
    each = (memory.num_parameters - memory.embedding_parameters) / memory.num_layers
    stages = [each * number for number in divided(model, pp)]
    if pp > 1:
        stages[0] += memory.end_parameters
        stages[-1] += memory.end_parameters
    else:
        stages[0] += memory.embedding_parameters
    alike = model.num_gpus / tp / pp
    size, node = sp * cp * tp * pp, links.gpus_per_node
    near = sum(row * tp < node for row in range(sp * cp))  # Of one replica, in its first node.
    near *= max(1, sum(first + size <= node for first in range(0, model.num_gpus, size)))
    bandwidth = links.node_bandwidth
    if near < alike and links.network_bandwidth:
        bandwidth = min(bandwidth, near * links.network_bandwidth)
    return links.sync_bytes * max(stages) / tp * (alike - 1) / alike / bandwidth if alike > 1 else 0.0


def divided(model: GpuModel, stages: int) -> list[int]:
    """Layers of each stage: of all ways, the one whose slowest stage has the least, the head counted in the last."""
    layers = model.cost.num_layers
    if stages == 1:
        return [layers]
    head = model.cost.head * layers / (model.cost.linear - model.cost.head)
    best = min(
        (max(-(-(layers - last) // (stages - 1)), last + head), -last) for last in range(1, layers - stages + 2)
    )
    last, found = -best[1], []
    for stage in range(stages - 1):
        found.append(-(-(layers - last - sum(found)) // (stages - 1 - stage)))
    return [*found, last]


def _longest(slots, iteration):
    return max(slot.group for slot in slots if slot.iteration == iteration)


def squares(lengths):
    """The sum of squares of the lengths."""
    return sum(length**2 for length in lengths)


def _slot(plan: Plan, model: GpuModel, k: int, pad_to: str) -> Slot:
    schedule, cost = plan.epochs[0], model.cost
    pack, iteration = int(schedule.slot_pack[k]), int(schedule.slot_iteration[k])
    group = int(schedule.slot_group[k])
    sp, cp, tp, pp, vpp = plan.groups[group].layout
    lengths = _lengths(plan, pack)
    layers = _layers(plan, model, group)
    aligned = [-(-length // plan.groups[group].align) * plan.groups[group].align for length in lengths]
    tokens, work, row_work = sum(lengths), squares(lengths), squares(aligned)
    row = 8 * sp * cp * tp if pack == FILLER else sum(aligned)
    if pad_to == "row":
        row = max(row, int(schedule.slot_row_length[k]))
    if pad_to == "capacity":
        row = max(row, plan.groups[group].capacity)
    while row % (sp * cp * tp * (2 if cp > 1 else 1)):  # Two chunks a rank.
        row += 1
    padding = row - tokens
    row_work += squares([row - sum(aligned)])
    if plan.mask == "causal":
        work, row_work = squares([tokens]), squares([row])
    if cp > 1 and pack != FILLER:
        rows = aligned if plan.mask == "document" else [sum(aligned)]
        waiting = work * (sharding.slowdown(rows, cp, PLANNED[plan.packs.cp_sharding[pack]]) - 1)
        work, row_work = work + waiting, row_work + waiting
    share = layers / cost.num_layers
    stages = divided(model, pp)
    kinds = [(max(stages), 1)] if pp == 1 else [(max(stages[:-1]), 0), (stages[-1], 1)]
    found = [
        _on_stage(
            cost, number / cost.num_layers, head, (work, tokens, row_work - work, padding), share, (sp, cp, tp, pp)
        )
        for number, head in kinds
    ]
    parts = max(found, key=lambda parts: sum(parts.values()))
    return Slot(
        iteration=iteration,
        first_gpu=int(schedule.slot_first_gpu[k]),
        group=group,
        num_gpus=sp * cp * tp * pp,
        pp=pp,
        vpp=vpp,
        forward=1 / (3 + 3 * cost.recompute * share),
        parts=parts,
    )


def _on_stage(cost, of_layers, head, row, share, degrees) -> dict[str, float]:
    """The seconds of a micro-batch on a stage with this share of the layers, with or without the LM head."""
    work, tokens, work_of_padding, padding = row
    sp, cp, tp, pp = degrees

    def computed(work, tokens):
        layers = cost.quadratic * work + (cost.linear - cost.head) * tokens
        return (layers * of_layers + head * cost.head * tokens) / (sp * cp * tp)

    compute = computed(work, tokens)
    of_padding = computed(work_of_padding, padding) * (1 + cost.recompute * share)
    a_token = once = 0.0
    links, again = cost.model_parallel, 1 + cost.resend * share

    def in_node(size, stride):
        return max(1, sum(rank * stride < links.gpus_per_node for rank in range(size)))

    def bandwidth(size, stride):
        if in_node(size, stride) == size:
            return links.node_bandwidth
        return min(links.node_bandwidth, in_node(size, stride) * links.network_bandwidth)

    if sp > 1:
        a_token = cost.send[sp] * again * of_layers
        once = cost.send_constant * of_layers
    if sp > 1 and tp > 1:
        to_peer = links.num_layers * links.all_to_all_bytes[sp * tp] / tp / sp / sp
        near, far = in_node(sp, tp) - 1, sp - in_node(sp, tp)
        a_token = (
            max(near * to_peer / links.node_bandwidth, far * to_peer / links.network_bandwidth) * again * of_layers
        )
    if tp > 1:
        sent = (8 + 4 * share) * links.hidden_bytes / (sp * cp) * (tp - 1) / tp
        a_token += links.num_layers * of_layers * sent / bandwidth(tp, 1)
        once += 8 * links.latency * links.num_layers * of_layers
    if cp > 1:
        sent = (3 + share) * links.kv_bytes / tp * (cp - 1) / cp
        a_token += links.num_layers * of_layers * sent / bandwidth(cp, tp)
        once += 3 * links.latency * links.num_layers * of_layers
    if pp > 1:
        slowest = (
            min(bandwidth(2, 1), links.network_bandwidth)
            if sp * cp * tp * pp > links.gpus_per_node
            else links.node_bandwidth
        )
        a_token += 2 * links.hidden_bytes / (sp * cp * tp) / slowest
    communication = a_token * tokens + once
    of_padding += a_token * padding
    return {
        "compute": compute,
        "recompute": compute * cost.recompute * share,
        "communication": communication,
        "padding": of_padding,
        "constant": cost.constant if (cost.gathers and tp == pp == 1) or links is None else links.constant,
    }


def _lengths(plan: Plan, pack: int) -> list[int]:
    if pack == FILLER:
        return []
    members = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]
    return [int(plan.pieces.length[piece]) for piece in members]


def _layers(plan: Plan, model: GpuModel, group: int) -> int:
    """As the plan says, else the fewest that fit, else all."""
    most = model.memory.num_layers
    if plan.groups[group].checkpoint_layers:
        return min(plan.groups[group].checkpoint_layers, most)
    row = plan.groups[group]
    fitting = [n for n in range(most + 1) if model.memory.bytes(row.capacity, row.layout, n) <= model.memory.limit]
    return min(fitting, default=most)
