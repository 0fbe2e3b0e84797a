"""Fits: known coefficients come back from noisy rows; what rows cannot tell is taken from elsewhere, and said."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.cost.fit_cost import solve_nonnegative, standard_errors
from packer_cli.cost.fit_profile import fit_profile, measured_model, search_checkpoint_layers
from packer_cli.cost.predict import CostModel, MemoryModel
from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout

LAYERS = 32
SHAPE = ModelShape(
    num_layers=LAYERS, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14336,
    vocabulary_size=128256,
)  # fmt: skip
COST = CostModel(
    quadratic=2e-9, linear=9e-5, constant=0.08, num_layers=LAYERS, recompute=0.31,
    send={2: 2e-6, 4: 1.5e-6, 8: 1e-6}, send_constant=0.02,
)  # fmt: skip
MEMORY = MemoryModel(
    limit=72e9, constant=9e9, per_token=1.8e6, per_layer_token=2e5, per_checkpointed_token=8192, num_layers=LAYERS
)
SETTINGS = [
    (length, sp, ckpt, pieces)
    for length in (2048, 8192, 32768, 131072)
    for sp in (1, 2, 4, 8)
    for ckpt in (0, 16, 32)
    for pieces in (1, 8)
]


def profile_of(settings, cost=COST, memory=MEMORY, *, noise=0.0, seed=0, num_gpus=8, model=None, **more):
    random = np.random.default_rng(seed)
    rows = []
    for length, sp, ckpt, pieces in settings:
        work = length**2 // pieces
        seconds = float(cost.seconds(work, length, Layout(sp=sp), ckpt)) * (1 + noise * random.standard_normal())
        peak = memory.bytes(length, Layout(sp=sp), ckpt) * (1 + noise * random.standard_normal())
        rows.append(
            IterationRow(
                length=length, sp_size=sp, checkpoint_layers=ckpt, seconds=max(seconds, 1e-9),
                tokens=length * num_gpus // sp, work=work, memory_bytes=int(peak),
            )
        )  # fmt: skip
    more = {"memory_limit": int(memory.limit), **more}
    return Profile(
        model=asdict(SHAPE) if model is None else model, gpu="h", num_gpus=num_gpus, iterations=rows, **more
    )


coefficients = st.builds(
    CostModel,
    quadratic=st.floats(5e-10, 1e-8), linear=st.floats(2e-5, 5e-4), constant=st.floats(0.01, 0.3),
    num_layers=st.just(LAYERS), recompute=st.floats(0.1, 0.6),
    send=st.fixed_dictionaries({degree: st.floats(1e-6, 5e-5) for degree in (2, 4, 8)}),
    send_constant=st.floats(0, 0.1),
)  # fmt: skip


@given(cost=coefficients)
def test_exact_rows_give_the_coefficients_back(cost):
    found, _ = fit_profile(profile_of(SETTINGS, cost))
    assert found.notes == ()
    assert found.fit.mean_error < 1e-5
    for name in ("quadratic", "linear", "constant", "recompute"):
        assert getattr(found.model, name) == pytest.approx(getattr(cost, name), rel=1e-3), name
    for degree, seconds in cost.send.items():
        assert found.model.send[degree] == pytest.approx(seconds, rel=2e-3)


@given(cost=coefficients, seed=st.integers(0, 2**32 - 1))
def test_noisy_rows_give_them_back_within_their_errors(cost, seed):
    """Of 60 examples and 7 coefficients none may be farther off than five standard errors."""
    found, _ = fit_profile(profile_of(SETTINGS, cost, noise=0.02, seed=seed))
    wanted = {
        "quadratic": cost.quadratic, "linear": cost.linear, "constant": cost.constant, "recompute": cost.recompute,
        **{f"send.{degree}": seconds for degree, seconds in cost.send.items()},
    }  # fmt: skip
    assert found.fit.mean_error < 0.03
    for name, value in wanted.items():
        assert abs(found.fit.coefficients[name] - value) <= 5 * found.fit.errors[name] + 1e-9, name
    # The rows pin down what the predictions are made of.
    assert found.fit.errors["quadratic"] < 0.1 * cost.quadratic
    assert found.fit.errors["linear"] < 0.1 * cost.linear


@given(seed=st.integers(0, 1000), num=st.integers(1, 12))
def test_few_rows_give_an_error_or_a_model_and_never_nonsense(seed, num):
    random = np.random.default_rng(seed)
    settings = [SETTINGS[i] for i in random.choice(len(SETTINGS), num, replace=False)]
    try:
        model = measured_model(profile_of(settings, noise=0.01, seed=seed))
    except ConfigError as error:
        assert "measure" in str(error)  # noqa: PT017
        return
    values = [model.cost.quadratic, model.cost.linear, model.cost.constant, model.cost.send_constant]
    assert all(np.isfinite(value) and value >= 0 for value in [*values, *model.cost.send.values()])
    assert model.cost.quadratic + model.cost.linear > 0
    assert 0 <= model.cost.recompute <= 1
    memory = model.memory
    assert min(memory.constant, memory.per_token, memory.per_layer_token, memory.per_checkpointed_token) >= 0
    # What was measured is predicted, whatever was assumed for the rest.
    for length, sp, ckpt, pieces in settings:
        found = float(model.cost.seconds(length**2 // pieces, length, Layout(sp=sp), ckpt))
        assert found == pytest.approx(float(COST.seconds(length**2 // pieces, length, Layout(sp=sp), ckpt)), rel=0.8)
        assert memory.bytes(length, Layout(sp=sp), ckpt) == pytest.approx(
            MEMORY.bytes(length, Layout(sp=sp), ckpt), rel=0.25
        )


def test_what_one_length_leaves_open_is_taken_from_the_flops():
    settings = [(32768, 1, 0, 1), (32768, 2, 0, 1)]
    found = measured_model_notes(settings)
    assert found == [
        "attention's share of the time is not measured (one length only): taken from the FLOPs",
        "what checkpointing costs is not measured: assumed to be 0.333 of the computing time",
        "the constant of a micro-batch is not measured: assumed to be 0",
        "the constant of the communication is not measured: assumed to be 0",
        "what checkpointing saves is not measured: assumed to be 192,648 bytes a token and layer",
    ]
    with pytest.raises(ConfigError) as error:
        measured_model(profile_of(settings, model={"num_layers": LAYERS, "num_heads": 32}))
    assert str(error.value) == (
        "the profile cannot tell the square of the length from the length: measure at least two lengths, or rows of "
        "several samples beside rows of one"
    )


def measured_model_notes(settings):
    return measured_model(profile_of(settings)).origin["notes"]


def test_degrees_that_were_not_measured_come_from_the_bandwidth_or_not_at_all():
    alone = [setting for setting in SETTINGS if setting[1] == 1]
    assert measured_model(profile_of(alone)).sp_sizes == (1,)
    assumed = {"bandwidth": 300e9}
    model = measured_model(profile_of(alone, num_gpus=32, assumed=assumed))
    assert model.sp_sizes == (1, 2, 4, 8)  # 16 and 32 would leave the node.
    assert "SP degrees 2, 4, 8 are computed from the bandwidth that was given" in model.origin["notes"]
    # (sp - 1) / sp^2 of the bytes of the row's layers, over the bandwidth.
    carried = LAYERS * 2 * 2 * (4096 + 2 * 1024 + 4096)
    assert model.cost.send[4] == pytest.approx(carried * 3 / 16 / 300e9)
    assumed["network_bandwidth"] = 40e9
    assert measured_model(profile_of(alone, num_gpus=32, assumed=assumed)).sp_sizes == (1, 2, 4, 8, 16, 32)
    # What was measured is not replaced.
    both = measured_model(profile_of(SETTINGS, assumed={"bandwidth": 1.0}))
    assert both.cost.send[2] == pytest.approx(COST.send[2], rel=1e-3)


def test_rows_of_several_micro_batches_are_compared_by_the_token():
    profile = profile_of(SETTINGS)
    rows = [
        row.model_copy(update={"seconds": 3 * row.seconds, "tokens": 3 * row.tokens}) for row in profile.iterations
    ]
    tripled = measured_model(profile.model_copy(update={"iterations": tuple(rows)}))
    assert tripled.cost.linear == pytest.approx(COST.linear, rel=1e-3)
    assert tripled.cost.constant == pytest.approx(COST.constant, rel=1e-2)
    # Rows that two GPUs ran for a training on eight.
    few = profile_of([setting for setting in SETTINGS if setting[1] <= 2], num_gpus=2)
    few = few.model_copy(update={"num_gpus": 8, "num_measured": 2})
    assert measured_model(few).cost.linear == pytest.approx(COST.linear, rel=1e-3)


def test_memory_predictions_and_least_layers_come_back():
    model = measured_model(profile_of(SETTINGS))
    for length, sp, ckpt, _ in SETTINGS:
        assert model.memory.bytes(length, Layout(sp=sp), ckpt) == pytest.approx(
            MEMORY.bytes(length, Layout(sp=sp), ckpt), rel=1e-6
        )
        assert model.memory.least_checkpoint_layers(length, Layout(sp=sp)) == MEMORY.least_checkpoint_layers(
            length, Layout(sp=sp)
        )
    assert model.memory.longest(Layout(sp=8)) == pytest.approx(MEMORY.longest(Layout(sp=8)), rel=1e-6)
    added = measured_model(profile_of(SETTINGS, assumed={"constant_bytes_added": -1e9}))
    assert added.memory.constant == pytest.approx(model.memory.constant - 1e9, rel=1e-6)


def test_rows_that_ran_out_of_memory_are_left_out():
    profile = profile_of(SETTINGS)
    lost = IterationRow(length=2**20, checkpoint_layers=LAYERS, tokens=2**23, memory_bytes=1, out_of_memory=True)
    more = profile.model_copy(update={"iterations": (*profile.iterations, lost)})
    assert measured_model(more).cost == measured_model(profile).cost
    with pytest.raises(ConfigError, match="the profile has no iteration that ran"):
        measured_model(profile.model_copy(update={"iterations": (lost,)}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"memory_limit": None},
            "the profile has no memory_limit: profile again with --memory, or write it into the file",
        ),
        ({"model": {"num_heads": 2}}, "the profile's model must have num_layers, an integer above 0, got None"),
        (
            {"model": {"num_layers": 4}},
            (
                "the profile has a row with 32 checkpointed layers, and its model has 4 layers; run hbpack profile "
                "again"
            ),
        ),
        ({"assumed": {"bandwidth": "fast"}}, "the profile's assumed bandwidth must be a number, got 'fast'"),
        (
            {"assumed": {"bandwidth": 0}},
            "the profile's assumed bandwidth must be above 0 bytes/s, got 0.0; correct it",
        ),
        (
            {"iterations": ()},
            (
                "the profile has no iteration that ran: measure shorter lengths with hbpack profile, or give it more "
                "--memory"
            ),
        ),
    ],
)
def test_a_profile_that_says_too_little(change, message):
    with pytest.raises(ConfigError) as error:
        measured_model(profile_of(SETTINGS).model_copy(update=change))
    assert str(error.value) == message


def test_memory_that_tells_too_little():
    one = [(8192, 1, 0, 1), (8192, 1, 32, 8)]
    two = [(8192, 1, 0, 1), (16384, 1, 0, 1)]
    for profile, message in (
        (
            profile_of(one),
            (
                "the profile has peak memory at fewer than two numbers of tokens a GPU: measure two lengths at least "
                "that fit"
            ),
        ),
        (
            profile_of(two, model={"num_layers": LAYERS}),
            (
                "the profile cannot tell what checkpointing saves: measure a length with other numbers of "
                "checkpointed layers"
            ),
        ),
    ):
        with pytest.raises(ConfigError) as error:
            measured_model(profile)
        assert str(error.value) == message


@given(
    num_layers=st.integers(1, 100), base=st.floats(0, 100),
    falls=st.lists(st.floats(0, 3), min_size=100, max_size=100), straight=st.booleans(), limit=st.floats(1, 200),
    most=st.floats(50, 400),
)  # fmt: skip
def test_algorithm_4_finds_the_least_layers(num_layers, base, falls, straight, limit, most):
    """On any memory curve that falls with the layers, and with settings that do not run at all."""
    slopes = [falls[0] if straight else fall for fall in falls[:num_layers]]
    curve = [base + sum(slopes[layers:]) for layers in range(num_layers + 1)]
    calls = []

    def measure(layers):
        calls.append(layers)
        return None if curve[layers] > most else curve[layers]

    found, peaks = search_checkpoint_layers(measure, num_layers, limit)
    fits = [layers for layers in range(num_layers + 1) if curve[layers] <= min(limit, most)]
    assert found == (min(fits) if fits else None)
    assert len(calls) == len(set(calls))
    assert peaks == {layers: None if curve[layers] > most else curve[layers] for layers in calls}
    if straight and limit <= most and falls[0] > 1e-3:
        assert len(calls) <= 12 if curve[0] > most else len(calls) <= 6


@given(
    matrix=st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=5, max_size=9),
    values=st.lists(st.floats(-5, 5), min_size=9, max_size=9),
)  # fmt: skip
def test_non_negative_least_squares_beside_every_subset(matrix, values):
    features, values = np.array(matrix), np.array(values[: len(matrix)])
    found = solve_nonnegative(features, values)
    assert (found >= 0).all()
    best = float(np.linalg.norm(values))
    for size in range(1, 5):
        for subset in map(list, combinations(range(4), size)):
            x = np.linalg.lstsq(features[:, subset], values, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(np.linalg.norm(features[:, subset] @ x - values)))
    assert float(np.linalg.norm(features @ found - values)) <= best + 1e-6 * (1 + best)


@given(seed=st.integers(0, 100))
def test_standard_errors_beside_the_textbook(seed):
    random = np.random.default_rng(seed)
    matrix, residuals = random.standard_normal((9, 3)), random.standard_normal(9)
    wanted = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)) * (residuals @ residuals) / 6)
    assert standard_errors(matrix, residuals) == pytest.approx(wanted)
    twice = np.column_stack((matrix, matrix[:, 0]))
    assert np.isinf(standard_errors(twice, residuals)).tolist() == [True, False, False, True]
    assert np.isinf(standard_errors(matrix[:3], residuals[:3])).all()


def test_memory_that_does_not_grow_with_the_tokens():
    """As where all rows are so short that the optimizer needs the most."""
    flat = replace(MEMORY, per_token=0.0, per_layer_token=0.0, per_checkpointed_token=0.0)
    assert flat.longest() == 2**31 - 1
    assert replace(flat, limit=flat.constant).longest() == 0
