"""The simulation against its twin, by hand, and what better hardware or fewer samples may do to it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.cost.predict import CostModel, GpuModel, MemoryModel, ModelParallelCost
from packer_cli.errors import ConfigError
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import FILLER, Packs, Pieces, Plan, Schedule
from packer_cli.plan.strategies.assemble import run_freely
from packer_cli.simulate.epoch import PARTS, PadTo, choose_layers, simulate
from packer_cli.simulate.figures import simulation_figures
from tests.naive import simulate as naive

PAD_TO = get_args(PadTo)
NUM_LAYERS = 4
NUM_GPUS = 4


LINKS = ModelParallelCost(
    num_layers=NUM_LAYERS,
    hidden_bytes=4,
    kv_bytes=2,
    all_to_all_bytes={1: 4, 2: 8, 4: 16, 8: 32},
    node_bandwidth=400,
    network_bandwidth=100,
    gpus_per_node=4,
    latency=1 / 64,
    constant=0.125,
    sync_bytes=2.0,
)
FREE_LINKS = replace(LINKS, hidden_bytes=0, latency=0, constant=0.25, sync_bytes=0)


def model(**changes):
    """Round numbers: 1 s for 1000 units of work or 100 tokens. A GPU holds 40 tokens, 60 recomputed."""
    cost = {
        "quadratic": 1e-3,
        "linear": 1e-2,
        "constant": 0.25,
        "num_layers": NUM_LAYERS,
        "send": {2: 4e-3, 4: 6e-3},
        "send_constant": 0.125,
        "model_parallel": LINKS,
    }
    memory = MemoryModel(
        limit=1000, constant=0, per_token=1, per_layer_token=6, per_checkpointed_token=3.5, num_layers=NUM_LAYERS,
        num_gpus=NUM_GPUS,
    )  # fmt: skip
    cost |= changes
    head = cost.get("head", 0.0)
    memory = replace(memory, head_layers=head * NUM_LAYERS / (cost["linear"] - head))
    return GpuModel(cost=CostModel(**cost), memory=memory, num_gpus=NUM_GPUS, sp_sizes=(1, 2, 4), origin={})


def make_plan(groups, iterations, steps, num_gpus=NUM_GPUS, row_length=None):
    """A plan from iterations of slots `(group, lengths)`; no lengths: a filler."""
    slots = [(i, *slot) for i, iteration in enumerate(iterations) for slot in iteration]
    packs = [lengths for *_, lengths in slots if lengths]
    pack_of = np.full(len(slots), FILLER)
    pack_of[[bool(lengths) for *_, lengths in slots]] = np.arange(len(packs))
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int32)
    first = [sum(groups[g].sp_size for j, g, _ in slots[:k] if j == i) for k, (i, *_) in enumerate(slots)]
    if row_length is None:
        row_length = [max([sum(slot[1]) for slot in iteration] + [1]) for iteration in iterations]
    schedule = Schedule(
        slot_iteration=np.array([i for i, *_ in slots]),
        slot_pack=pack_of,
        slot_group=np.array([g for _, g, _ in slots], dtype=np.int16),
        slot_first_gpu=np.array(first, dtype=np.int32),
        slot_row_length=np.array([row_length[i] for i, *_ in slots], dtype=np.int32),
        iteration_step=np.array(steps),
    )
    return Plan(
        groups=tuple(groups),
        num_gpus=num_gpus,
        pieces=Pieces(samples=None, start=np.zeros(len(lengths), dtype=np.int32), length=lengths),
        packs=Packs(
            offsets=np.cumsum([0, *map(len, packs)]),
            pieces=np.arange(len(lengths), dtype=np.int32),
            group=np.array([g for _, g, lengths in slots if lengths], dtype=np.int16),
            cp_sharding=np.zeros(sum(bool(lengths) for _, _, lengths in slots), dtype=np.int8),
        ),
        epochs=(schedule,),
    )


def with_layout(plan, tp=1, pp=1, is_cp=False, vpp=1):
    """The plan with tensor and pipeline parallelism in all replicas, on as many times the GPUs; SP becomes CP.

    Every other pack is sharded per document then.
    """
    groups = tuple(replace(group, tp_size=tp, pp_size=pp, vpp_size=vpp) for group in plan.groups)
    if is_cp:
        groups = tuple(replace(group, sp_size=1, cp_size=group.sp_size) for group in groups)
    (schedule,) = plan.epochs
    schedule = replace(schedule, slot_first_gpu=schedule.slot_first_gpu * tp * pp)
    is_shared = np.array([group.cp_size > 1 for group in groups])[plan.packs.group]
    packs = replace(plan.packs, cp_sharding=(is_shared & (np.arange(len(is_shared)) % 2 == 1)).astype(np.int8))
    return replace(plan, groups=groups, num_gpus=plan.num_gpus * tp * pp, packs=packs, epochs=(schedule,))


GROUPS = (Group(capacity=40), Group(capacity=60, sp_size=2, checkpoint_layers=1), Group(capacity=200, sp_size=4))


@st.composite
def plans(draw, is_sorted=None):
    """Iterations of mixed degrees, with fillers; unless said, half of the plans with replicas by falling group."""
    num_groups, is_sorted = draw(st.integers(1, 3)), draw(st.booleans()) if is_sorted is None else is_sorted
    iterations, steps = [], []
    for _ in range(draw(st.integers(1, 5))):
        slots, left = [], NUM_GPUS
        while left:
            group = draw(st.sampled_from([g for g in range(num_groups) if GROUPS[g].sp_size <= left]))
            slots.append((group, draw(st.lists(st.integers(1, 30), max_size=4))))
            left -= GROUPS[group].sp_size
        if not any(lengths for _, lengths in slots):
            slots[0] = (slots[0][0], [draw(st.integers(1, 30))])
        iterations.append(sorted(slots, key=lambda slot: -slot[0]) if is_sorted else slots)
        steps.append((steps[-1] + draw(st.integers(0, 1))) if steps else 0)
    return make_plan(GROUPS[:num_groups], iterations, steps)


pads = st.sampled_from(PAD_TO)


@given(
    plan=plans(),
    tp=st.sampled_from([1, 1, 2]),
    pp=st.integers(1, 4),
    is_cp=st.booleans(),
    pad_to=pads,
    step_seconds=st.sampled_from([0.0, 1.5]),
    mask=st.sampled_from(["document", "causal"]),
    align=st.sampled_from([1, 1, 4]),
    is_free=st.booleans(),
    shard=st.sampled_from([None, 2]),
    vpp=st.sampled_from([1, 1, 2]),
    head=st.sampled_from([0.0, 4e-3]),
)
def test_it_equals_its_twin_and_the_split_is_the_whole(
    plan, tp, pp, is_cp, pad_to, step_seconds, mask, align, is_free, shard, vpp, head
):
    shard = shard if tp == pp == 1 else None
    plan = with_layout(plan, tp=tp, pp=pp, is_cp=is_cp, vpp=vpp)
    groups = tuple(replace(group, align=1 if mask == "causal" else align) for group in plan.groups)
    (schedule,) = plan.epochs
    falls = np.diff(schedule.slot_iteration * len(groups) - schedule.slot_group) >= 0
    if is_free and falls.all():
        plan = replace(plan, lockstep=1)
        schedule = run_freely(schedule, len(groups), np.arange(len(plan.packs)) % 3 + 1.0)
    plan = replace(plan, mask=mask, groups=groups, epochs=(schedule,))
    if shard and plan.lockstep is None:
        plan = replace(plan, lockstep=shard)
    priced = replace(model(head=head), num_gpus=plan.num_gpus, shard_gpus=shard if plan.lockstep == shard else None)
    weights = {"num_parameters": 20, "embedding_parameters": 4, "end_parameters": 2}
    priced = replace(priced, memory=replace(priced.memory, **weights))
    simulation = simulate(plan, priced, pad_to=pad_to, step_seconds=step_seconds)
    assert (simulation.gpu_seconds >= 0).all()
    iterations, steps, split = naive.simulate(plan, priced, pad_to, step_seconds)
    assert simulation.iteration_seconds == pytest.approx(iterations)
    assert simulation.step_seconds == pytest.approx(steps)
    expected = [[split[g, part] for part in PARTS] for g in range(len(plan.groups))]
    assert simulation.gpu_seconds == pytest.approx(np.array(expected), abs=1e-9)
    assert (simulation.gpu_seconds > -1e-9).all()
    assert simulation.gpu_seconds.sum() == pytest.approx(simulation.seconds * plan.num_gpus, rel=1e-12)
    assert simulation.group_tokens.sum() == plan.pieces.length.sum()


@given(
    plan=plans(),
    change=st.sampled_from(
        [
            {"quadratic": 5e-4},
            {"linear": 1e-3},
            {"constant": 0.0},
            {"send": {2: 1e-3, 4: 6e-3}},
            {"send_constant": 0.0},
            {"recompute": 0.1},
        ]
    ),
    pp=st.integers(1, 3),
    pad_to=pads,
)
def test_better_hardware_never_takes_longer(plan, change, pp, pad_to):
    plan, rules = with_layout(plan, pp=pp), {"pad_to": pad_to}
    before, after = simulate(plan, model(), **rules), simulate(plan, model(**change), **rules)
    assert (after.iteration_seconds <= before.iteration_seconds + 1e-12).all()
    assert (after.step_seconds <= before.step_seconds + 1e-12).all()


@given(plan=plans(), data=st.data(), pp=st.integers(1, 3))
def test_shorter_samples_never_take_longer(plan, data, pp):
    """By whole multiples of the degrees, so that no padding comes instead."""
    shorter = data.draw(st.lists(st.integers(0, 7), min_size=len(plan.pieces), max_size=len(plan.pieces)))
    cut = np.maximum(4, plan.pieces.length * 4 - 4 * np.array(shorter)).astype(np.int32)
    longer = replace(plan, pieces=replace(plan.pieces, length=plan.pieces.length * 4))
    less = replace(plan, pieces=replace(plan.pieces, length=cut))
    before, after = (simulate(with_layout(each, pp=pp), model()) for each in (longer, less))
    assert (after.iteration_seconds <= before.iteration_seconds + 1e-12).all()
    assert after.seconds <= before.seconds + 1e-9


@given(lengths=st.lists(st.integers(1, 40), min_size=4, max_size=24))
def test_sorting_by_work_never_takes_longer(lengths):
    """HBP's balance batching: of all ways to pair packs, neighbours in the sorted order wait least."""
    lengths = lengths[: len(lengths) // 2 * 2]

    def seconds(order):
        pairs = [[(0, [order[k]]), (0, [order[k + 1]])] for k in range(0, len(order), 2)]
        return simulate(make_plan(GROUPS[:1], pairs, steps=range(len(pairs)), num_gpus=2), model()).seconds

    assert seconds(sorted(lengths)) <= seconds(lengths) + 1e-9


def test_by_hand():
    """One pack of 20 + 20 beside one of 10 on a pair, one filler; then a row that four share."""
    groups = (Group(capacity=40, checkpoint_layers=2), Group(capacity=40, sp_size=2, checkpoint_layers=2), GROUPS[2])
    iterations = [[(0, [20, 20]), (1, [10]), (0, [])], [(2, [40])]]
    plan = make_plan(groups, iterations, steps=[0, 1])
    simulation = simulate(plan, model(), step_seconds=0.5)
    again = 1 + 1 / 3 * 2 / 4
    slow = (0.8 + 0.4) * again + 0.25
    # The filler is eight tokens, the pair's row has ten.
    filler = (0.064 + 0.08) * again + 0.25
    pair = (0.1 + 0.1) / 2 * again + 0.25 + 4e-3 * 10 * (1 + 0.5 * 2 / 4) + 0.125
    # 50 tokens a GPU fit with two layers checkpointed.
    row = (1.6 + 0.4) / 4 * again + 0.25 + 6e-3 * 40 * (1 + 0.5 * 2 / 4) + 0.125
    assert simulation.iteration_seconds == pytest.approx([slow, row])
    assert simulation.step_seconds == pytest.approx([slow + 0.5, row + 0.5])
    split = dict(zip(PARTS, simulation.gpu_seconds.sum(axis=0).tolist(), strict=True))
    assert split["waiting"] == pytest.approx((slow - filler) + 2 * (slow - pair))
    assert split["padding"] == pytest.approx(filler - 0.25)
    assert split["compute"] == pytest.approx(1.2 + 0.2 + 2.0)
    assert split["recompute"] == pytest.approx((1.2 + 0.2 + 2.0) / 6)
    assert split["constant"] == pytest.approx(8 * 0.25)
    assert split["steps"] == pytest.approx(4 * 2 * 0.5)
    assert split["bubbles"] == 0
    overall = simulation_figures(simulation, model()).overall
    assert overall.gpu_days == pytest.approx((slow + row + 1) * 4 / 86400)
    assert overall.tokens_per_gpu_second == pytest.approx(90 / (4 * (slow + row + 1)))
    groups = simulation_figures(simulation, model()).groups
    assert [group.num_iterations for group in groups] == [1, 1, 1]
    assert [group.iteration_seconds for group in groups] == pytest.approx([slow, slow, row])


@pytest.mark.parametrize(("pp", "iterations", "factor"), [(1, 6, 6), (2, 6, 7), (4, 1, 4), (4, 6, 9)])
def test_equal_iterations_in_a_pipeline_are_hydraulis_formula(pp, iterations, factor):
    """`(max cost + c) (pp - 1 + v)` of a stage."""
    plan = make_plan((Group(capacity=32),), [[(0, [20])] * 4] * iterations, steps=[0] * iterations)
    simulation = simulate(with_layout(plan, pp=pp), model(model_parallel=FREE_LINKS))
    a_stage = (0.4 + 0.2) / pp + 0.25
    assert simulation.seconds == pytest.approx(a_stage * factor)
    bubbles = simulation.gpu_seconds[:, PARTS.index("bubbles")].sum() / simulation.gpu_seconds.sum()
    assert bubbles == pytest.approx((pp - 1) / factor)  # The known share of an even pipeline.


def test_uneven_iterations_in_a_pipeline_run_in_their_order():
    plan = make_plan((Group(capacity=32),), [[(0, [20])] * 4, [(0, [10])] * 4, [(0, [10])] * 4], steps=[0, 0, 1])
    long, short = 0.6 / 2 + 0.25, 0.2 / 2 + 0.25
    simulation = simulate(with_layout(plan, pp=2), model(model_parallel=FREE_LINKS))
    # The first stage runs the long one's backward when the last has, then the short one's.
    assert simulation.step_seconds == pytest.approx([2 * long + short * 2 / 3, 2 * short])


def test_gradients_and_weights_end_a_step_where_none_are_gathered():
    links = replace(FREE_LINKS, sync_bytes=3.0, node_bandwidth=2.0)
    plan = make_plan((Group(capacity=32),), [[(0, [20])] * 4] * 2, steps=[0, 0])
    priced = replace(model(model_parallel=links), num_gpus=4)
    priced = replace(priced, memory=replace(priced.memory, num_parameters=8.0, limit=1e9))
    assert simulate(plan, priced).gpu_seconds[:, PARTS.index("sync")].sum() == 0  # FSDP: in every micro-batch.
    free = simulate(replace(plan, lockstep=1), priced)
    assert free.gpu_seconds[:, PARTS.index("sync")].sum() == pytest.approx(4 * 3.0 * 8 * 3 / 4 / 2.0)
    assert free.gpu_seconds[:, PARTS.index("constant")].sum() == pytest.approx(8 * links.constant)
    halved = simulate(with_layout(plan, tp=2), replace(priced, num_gpus=8))
    assert halved.gpu_seconds[:, PARTS.index("sync")].sum() == pytest.approx(8 * 3.0 * 4 * 3 / 4 / 2.0)


def test_gpus_that_share_weights_wait_for_each_other_alone():
    """Two shards of two GPUs: each has a long and a short micro-batch, in turns."""
    long, short = (0, [20]), (0, [10])
    plan = make_plan((Group(capacity=32),), [[long, long, short, short], [short, short, long, long]], steps=[0, 0])
    links = replace(FREE_LINKS, sync_bytes=3.0, node_bandwidth=2.0)
    priced = replace(model(model_parallel=links), num_gpus=4)
    priced = replace(priced, memory=replace(priced.memory, num_parameters=8.0, limit=1e9))
    every = simulate(plan, priced)
    shards = simulate(replace(plan, lockstep=2), replace(priced, shard_gpus=2))
    assert every.seconds == pytest.approx(2 * (0.4 + 0.2 + 0.25))
    # A shard of 4 parameters a GPU, reduced and gathered by two of them.
    assert shards.seconds == pytest.approx((0.4 + 0.2 + 0.25) + (0.1 + 0.1 + 0.25) + 3.0 * 4 / 2 / 2.0)
    assert shards.gpu_seconds.sum() == pytest.approx(4 * shards.seconds)


def test_padding_is_what_the_loader_adds():
    plan = make_plan(GROUPS, [[(1, [7])] * 2], steps=[0], row_length=[20])
    padding = PARTS.index("padding")

    def seconds(pad_to):
        return simulate(plan, model(), pad_to=pad_to).gpu_seconds[:, padding].sum() / NUM_GPUS

    def of(tokens):
        again = 1 + 1 / 3 / 4
        return (1e-3 * tokens**2 + 1e-2 * tokens) / 2 * again + 4e-3 * (1 + 0.5 / 4) * tokens

    assert [seconds(pad_to) for pad_to in PAD_TO] == pytest.approx([of(1), of(13), of(53)])


def test_layers_are_the_plans_or_the_fewest_that_fit():
    memory = model().memory
    assert choose_layers(Group(capacity=40), memory).layers == 0  # 40 tokens of 25 bytes.
    assert choose_layers(Group(capacity=41), memory).layers == 1
    assert choose_layers(Group(capacity=82, sp_size=2), memory).layers == 1
    named = choose_layers(Group(capacity=60, checkpoint_layers=2), memory)
    assert (named.layers, named.needed, named.fits) == (2, 4, False)
    assert choose_layers(Group(capacity=40, checkpoint_layers=99), memory).layers == NUM_LAYERS
    too_long = choose_layers(Group(capacity=100), memory)
    assert (too_long.layers, too_long.needed, too_long.fits) == (NUM_LAYERS, None, False)


LIMIT = "1000 B that a GPU has for training"


def test_notes_say_what_was_assumed():
    groups = (Group(capacity=41), Group(capacity=60, checkpoint_layers=2), Group(capacity=1024))
    plan = make_plan(groups, [[(0, [1])] * 7 + [(2, [1])]], steps=[0], num_gpus=8)
    notes = simulation_figures(simulate(plan, model()), model()).notes
    begin = "does not fit in memory, by the model: with"
    assert list(notes[:3]) == [
        "group 41:1 names no checkpointed layers: 1 of 4 assumed, the fewest that fit",
        f"group 60:1 {begin} 2 of 4 layers checkpointed it takes 1.2 KiB of the {LIMIT}; 4 layers would fit",
        f"group 1k:1 {begin} 4 of 4 layers checkpointed it takes 15.0 KiB of the {LIMIT}; raise its degrees",
    ]
    (about_gpus,) = notes[3:]
    assert about_gpus == (
        f"the model of time and memory is of {NUM_GPUS} GPUs that share the weights, and 8 train: memory, and what "
        "depends on it, is for the former"
    )


def test_a_degree_that_the_model_does_not_know():
    plan = make_plan([Group(capacity=40, sp_size=3)], [[(0, [5])]], steps=[0])
    with pytest.raises(ConfigError) as error:
        simulate(plan, model())
    assert str(error.value) == (
        "SP degree 3 is unknown to the model of the GPUs, which knows 1, 2, 4; plan with one of these, or give a "
        "--profile that holds it"
    )


def test_figures_are_json_of_whole_hours():
    plan = make_plan(GROUPS, [[(0, [20])] * 4, [(2, [40])]], steps=[0, 0])
    simulation = simulate(plan, model())
    figures = simulation_figures(simulation, model())
    overall, groups = figures.overall, figures.groups
    assert sum(overall.split.values()) == pytest.approx(overall.seconds)
    assert sum(group.gpu_hours for group in groups) == pytest.approx(overall.gpu_hours)
    assert overall.step_seconds == pytest.approx(overall.seconds)
    assert overall.iteration_seconds == pytest.approx(overall.seconds / 2)
    assert [group.num_iterations for group in groups] == [1, 0, 1]
    assert [group.name for group in groups] == ["40:1", "60:2", "200:4"]
