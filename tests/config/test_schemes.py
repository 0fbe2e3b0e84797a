"""The pool of parallel schemes: what fits in memory, and none that another makes useless."""

from __future__ import annotations

import itertools

import pytest

from packer_cli.cost.analytic import analytic_model, parse_gpu
from packer_cli.cost.shape import ModelShape
from packer_cli.format.layout import Layout
from packer_cli.plan.strategies.hydraulis.candidates import find_schemes

SHAPE = ModelShape(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14336, vocabulary_size=128256
)


def model_of(num_gpus=64, gpu="h100"):
    return analytic_model(SHAPE, parse_gpu(gpu), num_gpus).of_lockstep(1)


@pytest.mark.parametrize("longest", [300, 32_768, 131_072])
def test_every_scheme_fits_and_the_last_holds_the_longest(longest):
    model = model_of()
    found = find_schemes(longest, 64, model, None)
    capacities = [scheme.group.capacity for scheme in found]
    assert capacities == sorted(capacities)
    assert capacities[-1] == longest
    for scheme in found:
        group, layout = scheme.group, scheme.group.layout
        assert layout.sp == 1
        assert layout.tp in (1, 2, 4, 8)
        assert SHAPE.num_layers % layout.pp == 0
        assert group.num_gpus <= 64
        if layout.tp * layout.pp > 1:
            assert model.memory.bytes(group.capacity, layout, group.checkpoint_layers) <= model.memory.limit
            if group.capacity < longest:
                assert model.memory.bytes(group.capacity + 512, layout, group.checkpoint_layers) > model.memory.limit
        a, b, c = scheme.rates
        whole = float(model.cost.seconds(9_000_000, 5_000, layout, group.checkpoint_layers))
        if layout.pp == 1:
            assert a * 9_000_000 + b * 5_000 + c == pytest.approx(whole, rel=1e-4)
        else:  # Each rate is that of the stage that is slowest by it.
            assert whole * 0.9999 < a * 9_000_000 + b * 5_000 + c < whole * 1.02
    assert not any(one.dominates(other) for one, other in itertools.permutations(found, 2))


def test_a_pipeline_of_one_gpu_has_all_weights():
    """No other GPU runs with it, so none can share them: 8B parameters do not fit beside activations."""
    found = find_schemes(32_768, 64, model_of(gpu="h100:memory=50GiB"), None)
    assert Layout() not in [scheme.group.layout for scheme in found]
    assert model_of(gpu="h100:memory=50GiB").memory.constant < 20e9  # Where FSDP shares them.


def test_degrees_stay_below_those_that_are_given():
    model = model_of()
    found = {scheme.group.layout for scheme in find_schemes(32_768, 64, model, Layout(tp=4, pp=2))}
    assert {layout.tp for layout in found} <= {1, 2, 4}
    assert {layout.cp for layout in found} == {1}
    assert {layout.pp for layout in found} <= {1, 2}
    with_sp = {scheme.group.layout for scheme in find_schemes(32_768, 64, model, None, most_sp=4)}
    assert {1} < {layout.sp for layout in with_sp} <= {1, 2, 4}
    assert all(layout.cp == 1 or layout.sp == 1 for layout in with_sp)
