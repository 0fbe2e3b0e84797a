"""The choice of groups: the search beside every set there is, and what may never make it worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.config import PlanConfig, validate
from packer_cli.config.gpu_model import load_models
from packer_cli.config.resolve import resolve
from packer_cli.cost.predict import CostModel, GpuModel, MemoryModel
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.groups import choice as choosing
from packer_cli.groups.auto import choose
from packer_cli.groups.choice import NOT_WORTH_A_GROUP, Choice, hbp_groups, search_groups
from packer_cli.groups.estimate import EpochModel, LengthSums
from packer_cli.groups.settings import (
    Setting,
    best_settings,
    candidate_lengths,
    predicted_settings,
    settings_of,
)
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.simulate.epoch import simulate
from tests.config.test_strategies import llama
from tests.groups import naive_select as naive
from tests.plan.test_build import whole

GPUS = 32
LAYERS = 32


def make_model(
    *, memory: float = 72e9, send: float = 1.0, constant: float = 0.05, send_constant: float = 0.01, speed: float = 1.0
) -> GpuModel:
    """About an 8B model on H100s: eight GPUs a node, slower beyond."""
    cost = CostModel(
        quadratic=2e-9 / speed,
        linear=1.2e-4 / speed,
        constant=constant,
        num_layers=LAYERS,
        send={2: 6e-6 * send, 4: 5e-6 * send, 8: 4e-6 * send, 16: 9e-6 * send, 32: 8e-6 * send},
        send_constant=send_constant,
    )
    limits = MemoryModel(
        limit=memory,
        constant=8e9,
        per_token=3e5,
        per_layer_token=1.5e5,
        per_checkpointed_token=8192.0,
        num_layers=LAYERS,
    )
    return GpuModel(cost=cost, memory=limits, num_gpus=GPUS, sp_sizes=(1, 2, 4, 8, 16, 32), origin={})


def make_lengths(seed: int = 0, longest: int = 131072) -> np.ndarray:
    """Many chats, some documents."""
    random = np.random.default_rng(seed)
    chats = np.minimum(random.lognormal(5.5, 0.8, 6000), 4000)
    documents = np.minimum(random.lognormal(9, 1.3, 500), longest)
    return np.concatenate([chats, documents, [longest]]).astype(np.int32)


def choose_groups(model: GpuModel, lengths, gpus: int, *, planned=None, **options) -> Choice:
    config = PlanConfig(groups="1k", gpus=gpus).model_copy(update=options)
    return choosing.choose_groups(model, lengths, config, planned=planned)


def setting(length: int, sp_size: int, time: float) -> Setting:
    group = Group(capacity=length, sp_size=sp_size, checkpoint_layers=3)
    return Setting(group=group, seconds=time, seconds_per_token=time, memory_bytes=None, is_measured=True)


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ([(8, 1, 2.0), (16, 1, 1.0), (128, 8, 3.0)], [(16, 1), (128, 8)]),  # l2 = l_best
        ([(8, 1, 1.0), (128, 4, 3.0)], [(8, 1), (32, 1), (128, 4)]),  # l2 > l_best
        ([(16, 2, 1.0), (128, 4, 3.0)], [(8, 1), (16, 2), (32, 1), (128, 4)]),  # four groups
        ([(64, 8, 1.0), (128, 8, 3.0)], [(8, 1), (64, 8), (128, 8)]),  # l2 < l_best
        ([(8, 1, 2.0), (128, 8, 1.0)], [(16, 1), (128, 8)]),  # l_best = l_max
        ([(8, 1, 2.0)], [(8, 1)]),
    ],
)
def test_algorithm_1(best, expected):
    groups = hbp_groups({k * 1024: setting(k * 1024, sp, time) for k, sp, time in best}, lambda length: None)
    assert [(group.capacity // 1024, group.sp_size) for group in groups] == expected
    assert all(group.checkpoint_layers == 3 for group in groups)


lengths_of_any = st.lists(st.integers(1, 64), min_size=1, max_size=60)
costs = st.builds(
    lambda quadratic, linear, constant, send: CostModel(
        quadratic=quadratic, linear=linear, constant=constant, num_layers=4,
        send={2: send, 4: send * 0.8}, send_constant=constant / 3,
    ),
    st.floats(0, 0.1), st.floats(0.01, 1), st.sampled_from([0.0, 0.5]), st.floats(0, 1),
)  # fmt: skip
groups_of_any = st.builds(
    Group, capacity=st.integers(4, 80), sp_size=st.sampled_from([1, 2, 4]), checkpoint_layers=st.integers(0, 4)
)


@given(lengths_of_any, costs, st.lists(groups_of_any, max_size=4, unique_by=lambda group: group.capacity))
def test_epochs_are_those_of_the_naive_twin(lengths, cost, groups):
    groups = sorted(groups, key=lambda group: group.capacity)
    groups.append(Group(capacity=100, sp_size=2))
    model = EpochModel(cost, LengthSums(lengths), 4)
    assert model.gpu_seconds(groups) == pytest.approx(naive.gpu_seconds(lengths, groups, cost, 4), rel=1e-9)


@given(lengths_of_any, costs, st.lists(groups_of_any, min_size=1, max_size=8, unique=True))
def test_the_search_misses_no_set(lengths, cost, groups):
    ways: dict[int, list[Group]] = {100: [Group(capacity=100, sp_size=4, checkpoint_layers=1)]}
    for group in groups:
        ways.setdefault(group.capacity, []).append(group)
    model = EpochModel(cost, LengthSums(lengths), 4)
    found = search_groups(model, ways, 4)
    assert [len(each.groups) for each in found] == list(range(1, len(found) + 1))
    best = {}
    for count in range(1, 4):
        for chosen in naive.all_sets(ways, max(lengths), count):
            own = np.searchsorted([group.capacity for group in chosen], lengths)
            if len(set(own)) == count:  # A group without samples of its own changes nothing.
                seconds = naive.gpu_seconds(lengths, chosen, cost, 4)
                best[count] = min(seconds, best.get(count, np.inf))
    assert [4 * each.seconds for each in found[:3]] == pytest.approx([best[count] for count in sorted(best)], rel=1e-9)
    for each in found:
        assert naive.gpu_seconds(lengths, each.groups, cost, 4) == pytest.approx(4 * each.seconds, rel=1e-9)


many_lengths = st.builds(make_lengths, st.integers(0, 50), st.sampled_from([3000, 20_000, 70_000, 131_072]))
models = st.builds(
    make_model,
    memory=st.sampled_from([30e9, 72e9, 130e9]),
    send=st.sampled_from([0.1, 1.0, 10.0]),
    constant=st.sampled_from([0.0, 0.05, 1.0]),
)


def seconds_of(model: GpuModel, lengths: np.ndarray) -> float:
    """Of the shortest epoch that was found; the choice may take a little longer, with fewer groups."""
    return min(each.seconds for each in choose_groups(model, lengths, GPUS).alternatives)


@given(models, many_lengths)
@settings(max_examples=15)
def test_the_fewest_groups_whose_epoch_is_near_the_shortest(model, lengths):
    choice = choose_groups(model, lengths, GPUS)
    assert len(choice.alternatives) >= 3
    near = (1 + NOT_WORTH_A_GROUP) * min(each.seconds for each in choice.alternatives)
    assert choice.seconds <= near * (1 + 1e-12)
    for alternative in choice.alternatives[2:]:
        assert alternative.seconds > near or len(alternative.groups) >= len(choice.groups), alternative


@given(models, many_lengths, st.floats(1, 4))
@settings(max_examples=15)
def test_more_memory_is_never_slower(model, lengths, factor):
    more = replace(model, memory=replace(model.memory, limit=model.memory.limit * factor))
    assert seconds_of(more, lengths) <= seconds_of(model, lengths) * (1 + 1e-12)


@pytest.mark.slow
@given(models, many_lengths, st.floats(1, 10))
@settings(max_examples=15)
def test_more_bandwidth_is_never_slower(model, lengths, factor):
    send = {degree: seconds / factor for degree, seconds in model.cost.send.items()}
    assert seconds_of(replace(model, cost=replace(model.cost, send=send)), lengths) <= (
        seconds_of(model, lengths) * (1 + 1e-12)
    )


@given(models, many_lengths, st.floats(0, 1))
@settings(max_examples=15)
def test_without_its_longest_samples_an_epoch_is_never_longer(model, lengths, share):
    kept = np.sort(lengths)[: max(1, int(len(lengths) * share))]
    assert seconds_of(model, kept) <= seconds_of(model, lengths) * (1 + 1e-12)


@pytest.mark.slow
@given(models, many_lengths, st.integers(1, 131_072))
@settings(max_examples=15)
def test_with_its_longest_samples_cut_an_epoch_is_never_longer(model, lengths, longest):
    assert seconds_of(model, np.minimum(lengths, longest)) <= seconds_of(model, lengths) * (1 + 1e-12)


def test_hbp_is_chosen_where_it_is_asked_for():
    model, lengths = make_model(), make_lengths()
    choice = choose_groups(model, lengths, GPUS, group_algorithm="hbp")
    layouts, candidates = model.layouts(GPUS), [2**i for i in range(13, 18)]
    best = best_settings(predicted_settings(model, candidates, layouts, GPUS, LengthSums(lengths)))
    assert choice.groups == hbp_groups(best, lambda length: settings_of(model, length, layouts)[0])
    assert choice.groups == choice.alternatives[0].groups


def test_planned_epochs_decide_which_of_the_sets_is_taken():
    """The estimate finds the sets; the fewest groups within 1% of the shortest planned epoch are taken."""
    model, lengths = make_model(), make_lengths()
    estimate = choose_groups(model, lengths, GPUS)
    assert estimate.estimated == estimate.seconds
    assert len(estimate.groups) > 1
    one = choose_groups(model, lengths, GPUS, planned=lambda groups: 10.0 + len(groups))
    assert (len(one.groups), one.seconds, one.estimated) == (1, 11.0, one.estimated)
    assert one.estimated == next(each.seconds for each in estimate.alternatives if each.groups == one.groups)
    assert {each.seconds for each in one.alternatives} == {10.0 + len(each.groups) for each in one.alternatives}
    many = choose_groups(model, lengths, GPUS, planned=lambda groups: 10.0 - len(groups))
    assert len(many.groups) == max(len(each.groups) for each in many.alternatives)
    fewest = choose_groups(model, lengths, GPUS, planned=lambda groups: 1000.0 - len(groups))
    assert len(fewest.groups) == 1


def test_an_epoch_is_predicted_for_its_own_plan(tmp_path):
    lengths = make_lengths()
    config = validate(
        PlanConfig, {"groups": "auto", "gpus": GPUS, "model": str(llama(tmp_path)), "gpu": "h100", "strategy": "hbp"}
    )
    choice, record = choose(config, lengths)
    assert record.algorithm == "hbp"
    assert choice.groups == choice.alternatives[0].groups
    plan = build_plan(whole(lengths), resolve(config.with_groups(choice.groups)).request)
    model, _ = load_models(config, "a test")
    assert choice.seconds == pytest.approx(simulate(plan, model).seconds)
    assert choice.seconds != choice.estimated


def test_no_more_groups_than_allowed():
    for most in (1, 2, 3):
        assert len(choose_groups(make_model(), make_lengths(), GPUS, max_groups=most).groups) <= most
    assert len(choose_groups(make_model(), make_lengths(), GPUS).groups) > 1


def test_all_that_is_chosen_fits_and_divides():
    model = make_model()
    for group in choose_groups(model, make_lengths(), GPUS).groups:
        assert model.memory.bytes(group.capacity, group.layout, group.checkpoint_layers) <= model.memory.limit
        assert GPUS % group.sp_size == 0
        assert group.capacity % group.sp_size == 0


def test_the_longest_capacity_is_that_which_was_given():
    lengths = np.minimum(make_lengths(), 50_000)
    assert choose_groups(make_model(), lengths, GPUS, max_length=50_000).groups[-1].capacity == 50_000
    groups = choose_groups(make_model(), lengths, GPUS, group_algorithm="hbp", max_length=50_000).groups
    assert groups[-1].capacity == 50_000


def test_what_fits_nowhere_is_an_error():
    with pytest.raises(ConfigError) as error:
        choose_groups(make_model(memory=11e9), make_lengths(), 8)
    assert str(error.value) == (
        "the longest sample has 131,072 tokens, and at most 42,693 fit, with all 32 layers checkpointed and SP degree "
        "8: use a higher degree (more GPUs, or a model with more heads) or GPUs with more memory; or cut or leave out "
        "what is longer: --max-length 41984 with --overflow split or drop"
    )
    with pytest.raises(ConfigError) as error:
        choose_groups(make_model(memory=7e9), [10], 8)
    assert str(error.value) == (
        "no sample fits: a GPU's memory is full before any; use more than 8 GPUs, or larger ones"
    )


def test_a_sample_that_barely_fits_has_a_group():
    longest = make_model(memory=11e9).memory.longest(Layout(sp=8))
    assert choose_groups(make_model(memory=11e9), [longest, 10], 8).groups[-1].capacity == longest


@given(st.integers(1, 2**20), st.sets(st.sampled_from([1, 2, 4, 8, 16]), min_size=1))
def test_candidates(longest, degrees):
    lengths = candidate_lengths(longest, degrees, None)
    assert lengths == sorted(set(lengths))
    assert lengths[-1] >= longest
    assert {8192, 16384, 32768, 65536, 131072} <= set(lengths)
    assert all(length % 128 == 0 for length in lengths if length >= 8192)


@pytest.mark.parametrize("limits", [{}, {"max_groups": 1}, {"max_groups": 2}, {"group_algorithm": "hbp"}])
def test_predictions_are_near_those_of_a_plan(limits):
    """Within 3 % of what the simulation of the plan says; the search looks at hundreds of sets without one."""
    lengths = np.concatenate([make_lengths(seed) for seed in range(4)])
    model = make_model()
    choice = choose_groups(model, lengths, GPUS, **limits)
    config = PlanConfig(groups=choice.groups, gpus=GPUS)
    pieces = make_pieces(lengths, np.arange(len(lengths)), choice.groups[-1].capacity, "split")
    plan = build_plan(pieces, resolve(config).request)
    assert choice.seconds == pytest.approx(simulate(plan, model).seconds, rel=0.03)


def test_sums_of_no_lengths_and_of_all():
    sums = LengthSums(np.zeros(0, dtype=np.int32))
    assert (sums.longest, sums.num_samples) == (0, 0)
    sums = LengthSums([3, 5, 3, 9])
    assert (sums.longest, sums.num_samples) == (9, 4)
    assert sums.up_to([2, 3, 8]).tolist() == [[0, 2, 3], [0, 6, 11], [0, 18, 43]]
    assert (int(sums.longest_up_to(8)), int(sums.longest_up_to(2)), int(sums.shortest_over(5))) == (5, 0, 9)
    assert sums.density_up_to(5) == 43 / 11
    assert sums.density_up_to(2) == 2.0
    assert LengthSums([3, 2**25, 3]).up_to(5).tolist() == [2, 6, 18]


def test_no_group_is_without_samples_of_its_own():
    lengths = make_lengths()
    choice = choose_groups(make_model(), lengths, GPUS)
    for alternative in choice.alternatives[2:]:
        own = np.searchsorted([group.capacity for group in alternative.groups], lengths)
        assert len(set(own)) == len(alternative.groups)


@pytest.mark.parametrize("kind", ["few", "mid", "two lengths", "one long"])
def test_no_set_of_two_groups_is_faster_on_a_small_data_set(kind, tmp_path):
    """Planned, all of them: an estimate knows little of few rows."""
    rng = np.random.default_rng(3)
    lengths = {
        "few": rng.integers(10, 5000, 5),
        "mid": np.clip(rng.lognormal(np.log(4000), 0.8, 60), 1, 16_384),
        "two lengths": np.array([100, 12_000]),
        "one long": np.append(rng.integers(100, 900, 120), 16_384),
    }[kind].astype(np.int32)
    options = {"groups": "auto", "gpus": 4, "model": str(llama(tmp_path)), "gpu": "h200", "max_length": "16k"}
    config = validate(PlanConfig, options)
    model, _ = load_models(config, "a test")
    choice, _ = choose(config, lengths)

    def planned(groups):
        request = resolve(config.with_groups(groups)).request
        return simulate(build_plan(whole(lengths), request), model).seconds

    layouts = model.layouts(4)
    grid = candidate_lengths(int(lengths.max()), model.sp_sizes, 16_384)
    held = [length for length in grid if length >= lengths.max()]
    longest = [group for length in held for group in settings_of(model, length, layouts)]
    shorter = [group for length in grid[8::6] for group in settings_of(model, length, layouts)]
    sets = [(one,) for one in longest]
    sets += [(low, high) for high in longest[-3:] for low in shorter if low.capacity < high.capacity]
    assert choice.seconds <= min(map(planned, sets)) * 1.005
