"""The plain twin of `simulate`: slot by slot, with the formulas of the docs written out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from packer_cli.cost.models import GpuModel
from packer_cli.format.sharding import PLANNED
from packer_cli.plan.core.types import FILLER, Plan
from tests.naive import sharding


@dataclass
class Slot:
    iteration: int
    first_gpu: int
    group: int
    num_gpus: int
    pp: int
    parts: dict[str, float]
    """Seconds on a stage."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def simulate(plan: Plan, model: GpuModel, pad_to: str, step_seconds: float):
    """(seconds of iterations, seconds of steps, GPU-seconds by (group, part))."""
    schedule = plan.epochs[0]
    slots = [_slot(plan, model, k, pad_to) for k in range(len(schedule.slot_pack))]
    num_gpus, pp = plan.num_gpus, plan.groups[0].pp_size
    iterations, split = [], defaultdict(float)
    for i in range(schedule.num_iterations):
        members = [slot for slot in slots if slot.iteration == i]
        replicas = [
            [slot for slot in members if slot.first_gpu == gpu] for gpu in {slot.first_gpu for slot in members}
        ]
        times = []
        for replica in replicas:
            each = [slot.seconds for slot in replica]
            own = (replica[0].pp - 1) * max(each) if plan.lockstep == 1 else 0.0
            times.append(sum(each) + own)
            split[replica[0].group, "bubbles"] += replica[0].num_gpus * own
        iterations.append(max(times))
        for replica, time in zip(replicas, times, strict=True):
            gpus = replica[0].num_gpus
            for slot in replica:
                for part, value in slot.parts.items():
                    split[slot.group, part] += gpus * value
            split[replica[0].group, "waiting"] += gpus * (max(times) - time)
    steps = []
    for s in range(schedule.num_steps):
        members = [i for i in range(schedule.num_iterations) if schedule.iteration_step[i] == s]
        longest = max(members, key=lambda i: (iterations[i], i))
        bubbles = (pp - 1) * iterations[longest] if plan.lockstep is None else 0.0
        steps.append(sum(iterations[i] for i in members) + bubbles + step_seconds)
        split[_longest(slots, longest), "bubbles"] += bubbles * num_gpus
        split[_longest(slots, longest), "steps"] += step_seconds * num_gpus
    return iterations, steps, split


def _longest(slots, iteration):
    return max(slot.group for slot in slots if slot.iteration == iteration)


def squares(lengths, window):
    """The sum of squares of what a window cuts the lengths into; 0 cuts nothing."""
    return sum(
        min(window or length, length - start) ** 2
        for length in lengths
        for start in range(0, length, window or length or 1)
    )


def _slot(plan: Plan, model: GpuModel, k: int, pad_to: str) -> Slot:
    schedule, cost = plan.epochs[0], model.cost
    pack, iteration = int(schedule.slot_pack[k]), int(schedule.slot_iteration[k])
    group = int(schedule.slot_group[k])
    sp, cp, tp, pp = plan.groups[group].layout
    lengths = _lengths(plan, pack)
    layers = _layers(plan, model, group)
    aligned = [-(-length // plan.groups[group].align) * plan.groups[group].align for length in lengths]
    window = int(schedule.step_window[schedule.iteration_step[iteration]])
    tokens, work, row_work = sum(lengths), squares(lengths, window), squares(aligned, window)
    row = 8 * sp * cp * tp if pack == FILLER else sum(aligned)
    if pad_to == "row":
        row = max(row, int(schedule.slot_row_length[k]))
    if pad_to == "capacity":
        row = max(row, plan.groups[group].capacity)
    while row % (sp * cp * tp * (2 if cp > 1 else 1)):  # Two chunks a rank.
        row += 1
    padding = row - tokens
    row_work += squares([row - sum(aligned)], window)
    if plan.mask == "causal":
        work, row_work = squares([tokens], window), squares([row], window)
    if cp > 1 and pack != FILLER:
        rows = aligned if plan.mask == "document" else [sum(aligned)]
        waiting = work * (sharding.imbalance(rows, cp, PLANNED[plan.packs.cp_sharding[pack]]) - 1)
        work, row_work = work + waiting, row_work + waiting
    share = layers / cost.num_layers
    compute = (cost.quadratic * work + cost.linear * tokens) / (sp * cp * tp * pp)
    of_padding = (cost.quadratic * (row_work - work) + cost.linear * padding) / (sp * cp * tp * pp)
    of_padding *= 1 + cost.recompute * share
    a_token = once = 0.0
    links, again = cost.model_parallel, 1 + cost.resend * share

    def in_node(size, stride):
        return max(1, sum(rank * stride < links.gpus_per_node for rank in range(size)))

    def bandwidth(size, stride):
        if in_node(size, stride) == size:
            return links.node_bandwidth
        return min(links.node_bandwidth, in_node(size, stride) * links.network_bandwidth)

    if sp > 1:
        a_token = cost.send[sp] * again / pp
        once = cost.send_constant / pp
    if sp > 1 and tp > 1:
        to_peer = links.num_layers * links.all_to_all_bytes[sp * tp] / tp / sp / sp
        near, far = in_node(sp, tp) - 1, sp - in_node(sp, tp)
        a_token = max(near * to_peer / links.node_bandwidth, far * to_peer / links.network_bandwidth) * again / pp
    if tp > 1:
        sent = (8 + 4 * share) * links.hidden_bytes / (sp * cp) * (tp - 1) / tp
        a_token += links.num_layers / pp * sent / bandwidth(tp, 1)
        once += 8 * links.latency * links.num_layers / pp
    if cp > 1:
        sent = (3 + share) * links.kv_bytes / tp * (cp - 1) / cp
        a_token += links.num_layers / pp * sent / bandwidth(cp, tp)
        once += 3 * links.latency * links.num_layers / pp
    if pp > 1:
        slowest = (
            min(bandwidth(2, 1), links.network_bandwidth)
            if sp * cp * tp * pp > links.gpus_per_node
            else links.node_bandwidth
        )
        a_token += 2 * links.hidden_bytes / (sp * cp * tp) / slowest
    communication = a_token * tokens + once
    of_padding += a_token * padding
    parts = {
        "compute": compute,
        "recompute": compute * cost.recompute * share,
        "communication": communication,
        "padding": of_padding,
        "constant": cost.constant if tp == pp == 1 else links.constant,
    }
    return Slot(
        iteration=iteration,
        first_gpu=int(schedule.slot_first_gpu[k]),
        group=group,
        num_gpus=sp * cp * tp * pp,
        pp=pp,
        parts=parts,
    )


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
