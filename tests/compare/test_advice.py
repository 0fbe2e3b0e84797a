"""The sentences below a comparison of strategies."""

from __future__ import annotations

from types import SimpleNamespace

from packer_cli.compare.comparison import advice, preferred
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.figures import OverallFigures


def row(
    name, hours, *, own=False, groups=2, window=0, spread=0.2, delay=None, fits=True, lacks=(), left_out=0.0, **parts
):
    """A row on one GPU; what is not named it computes."""
    split = {part: 3600 * hours for part, hours in (dict.fromkeys(PARTS, 0.0) | parts).items()}
    split["compute"] = hours * 3600 - sum(split.values())
    overall = OverallFigures(
        seconds=hours * 3600, gpu_hours=hours, gpu_days=hours / 24, num_gpus=1, num_iterations=1, num_steps=1,
        iteration_seconds=hours * 3600, step_seconds=hours * 3600, tokens_per_gpu_second=1.0,
        useful=split["compute"] / hours / 3600, split=split,
    )  # fmt: skip
    strategy = STRATEGIES[name]
    request = SimpleNamespace(strategy=strategy, groups=[None] * groups, balance=SimpleNamespace(window=window))
    return SimpleNamespace(
        is_eligible=strategy.is_packed,
        request=request,
        may_be_taken=strategy.is_packed and fits and not lacks,
        fits=fits,
        lacks=lacks,
        work_left_out=left_out,
        name=name,
        is_own=own,
        overall=SimpleNamespace(length_mix_spread=spread, mean_delay=delay),
        simulation=SimpleNamespace(overall=overall),
    )


NAIVE = {"groups": 1, "window": None}


def said(*rows, attention=None, trainer=None, is_auto=True):
    return advice(rows, attention, trainer, is_auto=is_auto)


def test_it_names_the_fastest_and_why_the_slowest_is_slower():
    assert said(row("naive", 2.0, waiting=0.9), row("balanced", 1.0, waiting=0.01), row("hbp", 1.5)) == (
        "Take balanced: an epoch of 1.00 h, 2.00 times as fast as naive, whose GPUs wait for slower ones for 45% of "
        "their time (balanced: 1.0%)."
    )


def test_it_compares_with_what_the_trainer_does_at_run_time():
    rows = row("naive", 2.0), row("trl-bfd", 3.0), row("axolotl", 2.5), row("balanced", 1.0)
    for trainer, ratio in (("trl", "3.00 times as fast as trl-bfd"), ("axolotl", "2.50 times as fast as axolotl")):
        assert said(*rows, trainer=trainer) == f"Take balanced: an epoch of 1.00 h, {ratio}."
    for trainer in (None, "transformers", "megatron"):
        assert "2.00 times as fast as naive" in said(*rows, row("megatron", 1.5, lacks=("degrees",)), trainer=trainer)
    full = row("naive", 2.0), row("trl-bfd", 3.0, fits=False), row("balanced", 1.0)
    assert "2.00 times as fast as naive" in said(*full, trainer="trl")


def test_what_asks_for_more_must_gain_more():
    close = [row("naive", 2.0), row("balanced", 1.005)]
    assert said(*close, row("flexsp:all", 1.0)) == (
        "Take balanced: an epoch of 1.00 h, 1.99 times as fast as naive. Within 1% of it: flexsp:all."
    )
    assert said(*close, row("flexsp:all", 0.9)) == (
        "Take flexsp:all: an epoch of 54.0 min, 2.22 times as fast as naive. Your trainer must run replicas of unlike "
        "SP degrees side by side in one iteration; without that, take balanced (1.00 h)."
    )


def test_the_simplest_of_equal_ones_is_taken_but_for_the_users_own():
    rows = [row("balanced", 1.0), row("hbp", 1.005, groups=1), row("naive", 1.009, **NAIVE)]
    assert preferred(rows).name == "naive"
    assert said(*rows) == (
        "Take naive: an epoch of 1.01 h. Within 1% of it: balanced, hbp. Packing alone gives the gain: evening out "
        "work and groups of lengths add nothing here."
    )
    own = row("balanced", 1.008, own=True)
    assert preferred([row("hbp", 1.0), own, row("naive", 1.001, **NAIVE)]) is own
    assert said(row("hbp", 1.0), own).startswith("Take balanced, your own plan: an epoch of 1.01 h")
    assert preferred([row("hbp", 1.0), row("balanced", 1.02, own=True)]).name == "hbp"


def test_what_is_only_compared_is_never_taken():
    assert said(row("padded", 1.0), row("balanced", 2.0)) == "Take balanced: an epoch of 2.00 h."
    assert said(row("padded", 1.0), row("axolotl", 2.0)) is None
    assert preferred([row("padded", 1.0)]) is None
    assert said() is None


def test_it_says_what_part_attention_has_and_what_the_order_costs():
    rows = [row("naive", 2.0, spread=0.1, **NAIVE), row("wlb", 0.9, groups=1, spread=0.3, delay=0.5)]
    text = said(*rows, row("balanced", 1.0, spread=0.4), attention=0.088)
    assert "Attention takes 9% of the computing time, and only that part depends on ABR." in text
    assert (
        "The price is in the order: its steps mix lengths less than those of naive (spread 0.300, 0.100), and a token "
        "trains 0.50 steps after it arrives." in text
    )
    assert "order" not in said(row("naive", 2.0, spread=0.1), row("balanced", 1.0, spread=0.12))


def test_much_recomputing_in_named_groups_points_to_automatic_ones():
    rows = [row("naive", 2.0), row("balanced", 1.0, recompute=0.2), row("hydraulis", 0.8)]
    assert said(*rows, is_auto=False).endswith(
        "without that, take balanced (1.00 h). The GPUs of balanced repeat forward passes for 20% of their time in "
        "these groups; --groups auto weighs that."
    )
    assert "auto" not in said(*rows)
    assert "auto" not in said(row("naive", 2.0), row("balanced", 1.0, recompute=0.05), is_auto=False)


def test_one_alone():
    assert said(row("balanced", 12.0)) == "Take balanced: an epoch of 12.0 h."
    assert said(row("balanced", 1234.5, own=True)) == "Take balanced: an epoch of 51.4 days."


def test_what_leaves_out_work_is_not_faster():
    rows = [row("wlb", 0.9, groups=1, left_out=0.08), row("balanced", 1.0)]
    assert preferred(rows).name == "balanced"
    alone = row("wlb", 0.9, groups=1, left_out=0.08)
    assert preferred([alone, row("plain-4d", 1.0, groups=1, left_out=0.09)]) is alone


def test_what_does_not_fit_or_cannot_be_run_is_not_taken():
    rows = [row("naive", 2.0, **NAIVE), row("balanced", 1.0, fits=False), row("hbp", 1.5)]
    assert preferred(rows).name == "hbp"
    text = said(row("naive", 2.0), row("balanced", 1.5), row("megatron", 1.0, lacks=("cp",)))
    assert "Take balanced" in text
    assert "megatron would take 1.00 h with a trainer that can share rows by context parallelism (--trainer)." in text
