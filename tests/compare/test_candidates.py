"""Each row of a comparison on the best of its own layouts: of those that hold, and that the trainer can run."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest

import packer_cli
from packer_cli.cli.main import main
from packer_cli.commands.compare import _draws
from packer_cli.config import GpuConfig, PlanConfig, RepeatConfig, validate
from packer_cli.config.fields import ABILITIES, TRAINERS, asked_of_trainer
from packer_cli.config.gpu_model import load_gpu_model
from packer_cli.config.resolve import load_model
from packer_cli.errors import ConfigError
from tests.cli_runner import run
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("rows_of_this_process")

GPUS = 16
SHAPE = {"model_type": "llama", "intermediate_size": 14336, "vocab_size": 128256, "num_key_value_heads": 8}
STEPS = {"global_tokens": "2M"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of models of 8B and of 70B weights."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"8b": (32, 4096, 32), "70b": (80, 8192, 64)}
    for name, (layers, hidden, heads) in sizes.items():
        (root / name).mkdir()
        values = {**SHAPE, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        (root / name / "config.json").write_text(json.dumps(values))
    return {name: {"model": str(root / name), "gpu": "h100"} for name in sizes}


@pytest.fixture(scope="module")
def lengths():
    rng = np.random.default_rng(1)
    long = rng.integers(8_000, 65_536, 24)
    return np.concatenate([rng.lognormal(6, 1, 500), long]).astype(np.int32)


def compared(lengths, strategies, **options):
    options = {"groups": "8k:1,64k:8", "gpus": GPUS, **STEPS, **options}
    result = packer_cli.compare(lengths, strategies=strategies, workers=2, **options)
    assert all(row.error is None for row in result.rows)
    return result, {row.name: row for row in result.rows}


def seconds(row):
    return row.simulation.overall.seconds


def alone(lengths, strategy, **options):
    """The predicted epoch of one plan, with nothing searched for."""
    result = packer_cli.plan(lengths, strategy=strategy, gpus=GPUS, **{**STEPS, **options})
    model = {name: options[name] for name in ("model", "gpu")}
    simulation = packer_cli.simulate(result, **model)
    return simulation.overall.seconds if simulation.fits else np.inf


def test_naive_packing_is_at_the_best_of_its_degrees(models, lengths):
    _, rows = compared(lengths, "naive,balanced", **models["8b"])
    each = {sp: alone(lengths, "naive", groups=f"64k:{sp}", **models["8b"]) for sp in (1, 2, 4, 8, 16)}
    assert seconds(rows["naive"]) == pytest.approx(min(each.values()))
    best = min(each, key=each.get)
    assert rows["naive"].options["groups"] == f"64k:{best}"
    assert best != 8
    assert seconds(rows["naive@longest"]) == pytest.approx(each[8])  # HBP's own comparison.


def test_other_kinds_of_synchronization_are_tried_too(models, lengths):
    """FSDP's rows also with whole weights, and those of ZeRO-1 also gathered, if the trainer can."""
    _, rows = compared(lengths, "naive,megatron,balanced", trainer="pytorch", **models["8b"])
    for name in ("naive", "megatron"):
        tried = {each.request.lockstep for each in rows[name].candidates}
        assert tried == {None, 1}
    degrees = (f"64k:{sp}" for sp in (1, 2, 4, 8, 16))
    ways = itertools.product(degrees, ("all", "1"))
    least = min(alone(lengths, "naive", groups=group, lockstep=way, **models["8b"]) for group, way in ways)
    assert seconds(rows["naive"]) <= least * (1 + 1e-9)


def test_what_does_not_fit_is_marked_and_never_advised(models, lengths):
    result, rows = compared(lengths, "all", groups="16k:1,64k:1", gpus=64, **models["70b"])
    own = rows["balanced"]
    assert own.is_own
    assert not own.fits
    assert result.best is not own
    assert result.best.fits
    assert "balanced, your own plan" not in (result.advice or "")
    (warning, *_) = own.simulation.warnings
    assert re.search(r"it takes [\d.]+ GiB of the [\d.]+ GiB that a GPU has", warning)
    for name, row in rows.items():
        if len(row.candidates) > 1:
            assert row.fits, f"{name} has a layout that holds, and is not on it"
    # Whole weights of 70B do not fit a GPU, so their rows divide them.
    assert "tp=" in rows["wlb"].options["parallel"] or "pp=" in rows["wlb"].options["parallel"]


@pytest.mark.parametrize(
    "trainer", ["trl", *(pytest.param(each, marks=pytest.mark.slow) for each in ("megatron", None))]
)
def test_only_what_the_trainer_can_run_is_advised(models, lengths, trainer):
    result, rows = compared(lengths, "all", trainer=trainer, **models["8b"])
    can = validate(GpuConfig, {"trainer": trainer}).abilities | asked_of_trainer(rows["balanced"].request)
    assert asked_of_trainer(result.best.request) <= can
    faster = [row for row in rows.values() if row.lacks and seconds(row) < 0.98 * seconds(result.best)]
    if any(row.is_eligible for row in faster):
        assert "with a trainer that can" in result.advice


@pytest.mark.parametrize(
    ("strategy", "trainer"),
    [
        ("naive", "megatron"),
        *(pytest.param(each, "any", marks=pytest.mark.slow) for each in ("flexsp:all", "megatron", "wlb")),
    ],
)
def test_the_next_command_packs_as_printed(models, lengths, tmp_path, strategy, trainer):
    np.save(tmp_path / "lengths.npy", lengths)
    given = ["--gpus", str(GPUS), "--global-tokens", "2M", "--model", models["8b"]["model"], "--gpu", "h100"]
    asked = [tmp_path / "lengths.npy", "--groups", "8k:1,64k:8", *given, "--trainer", trainer]
    done = run(main, "compare", *asked, "--strategies", strategy, "--json")
    assert done.code == 0, (strategy, done.stderr)
    row = json.loads(done.stdout)["rows"][0]
    done = run(main, "compare", *asked, "--strategies", strategy)
    changes = done.stdout.rstrip().rpartition("same options and ")[2].split(", without")[0].split()
    named = dict(zip(changes[::2], changes[1::2], strict=True))
    options = {name.removeprefix("--").replace("-", "_"): value for name, value in named.items()}
    usual = {"groups": "8k:1,64k:8", "gpus": GPUS, **STEPS, **models["8b"]}
    plan = packer_cli.plan(lengths, **{**usual, **options})
    again = packer_cli.simulate(plan, **models["8b"])
    assert again.overall.seconds == pytest.approx(row["simulation"]["overall"]["seconds"], rel=1e-6), changes


@pytest.mark.slow  # `hydraulis` and `megatron` below choose, too.
def test_automatic_groups_choose_how_replicas_run(models, lengths):
    """With ZeRO-1 or tensor parallelism where the trainer has it and it is faster, and never slower than without."""
    usual = {"groups": "auto", "gpus": GPUS, **STEPS, **models["8b"]}
    least = packer_cli.plan(lengths, **usual)
    assert (least.group_choice.lockstep, least.group_choice.parallel) == ("all", None)
    more = packer_cli.plan(lengths, **usual, trainer="any")
    assert more.group_choice.seconds <= least.group_choice.seconds * 1.004
    tensor = packer_cli.plan(lengths, **usual, trainer="megatron")
    choice = tensor.group_choice
    assert choice.lockstep == "1" == tensor.config.lockstep
    layouts = {group.layout for group in tensor.groups}
    assert len(layouts) == 1, "Megatron has one layout"
    named = {"groups": choice.groups, "lockstep": "1", "parallel": choice.parallel}
    assert packer_cli.plan(lengths, **{**usual, **named}).groups == tensor.groups
    simulation = packer_cli.simulate(tensor, **models["8b"])
    assert simulation.fits
    assert simulation.overall.seconds == pytest.approx(choice.seconds, rel=1e-3)


def test_a_plan_is_compared_with_naive_packing_of_its_own_kind_and_at_its_best(models, lengths):
    plan = packer_cli.plan(lengths, groups="8k:1,64k:8", gpus=GPUS, lockstep="1", **STEPS, **models["8b"])
    result = packer_cli.simulate(plan, trainer="trl", **models["8b"])
    seconds_of_peer = packer_cli.simulate(peer(lengths, models), **models["8b"]).overall.seconds
    assert result.baseline.seconds == pytest.approx(seconds_of_peer, rel=1e-9)
    least = min(
        alone(lengths, "naive", groups=f"64k:{sp}", lockstep=way, **models["8b"])
        for sp in (1, 2, 4, 8, 16)
        for way in ("all", "1")
    )
    assert result.naive_at_best.seconds == pytest.approx(least)
    naive = packer_cli.plan(
        lengths, strategy="naive", groups="64k:8", gpus=GPUS, lockstep="1", **STEPS, **models["8b"]
    )
    assert packer_cli.simulate(naive, **models["8b"]).saves.speedup == pytest.approx(1.0)  # It is its own peer.


def peer(lengths, models):
    options = {"groups": "64k:8", "gpus": GPUS, "lockstep": "1", **STEPS, **models["8b"]}
    return packer_cli.plan(lengths, strategy="naive", **options)


def test_what_a_trainer_can_run():
    assert GpuConfig().abilities == TRAINERS["transformers"]
    assert GpuConfig(trainer="megatron,sp").abilities == TRAINERS["megatron"] | {"sp"}
    assert GpuConfig(trainer="any").abilities == set(ABILITIES)
    with pytest.raises(ConfigError, match=r"--trainer: 'megatrom' is no trainer .*did you mean 'megatron'"):
        validate(PlanConfig, {"groups": "1k", "gpus": 1, "trainer": "megatrom"})


def test_a_model_is_loaded_as_its_replicas_meet(models):
    config = validate(PlanConfig, {"groups": "1k", "gpus": 8, **STEPS, **models["8b"]})
    model = load_gpu_model(config, 8, "a test")
    assert model.of_lockstep("all") is model
    assert load_model(config, "a test") == model
    free = config.model_copy(update={"lockstep": "1"})
    assert load_model(free, "a test") == model.of_lockstep("1") != model
    shards = load_model(config.model_copy(update={"lockstep": "4"}), "a test")
    assert (shards.shard_gpus, shards.num_gpus) == (4, 8)


@pytest.mark.slow
def test_gpus_that_share_weights_hold_whole_replicas(models, lengths):
    """Every row that can run so does, and the plan alone takes as long."""
    options = {"lockstep": "8", **models["8b"]}
    _, rows = compared(lengths, "balanced,naive", **options)
    assert rows["naive"].options["lockstep"] == "8"
    assert {each.request.lockstep for each in rows["naive"].candidates} == {8}
    plan = packer_cli.plan(lengths, groups="8k:1,64k:8", gpus=GPUS, **STEPS, **options)
    every = packer_cli.plan(lengths, groups="8k:1,64k:8", gpus=GPUS, **STEPS, **models["8b"])
    assert np.array_equal(plan.arrays.packs.pieces, every.arrays.packs.pieces)
    simulation = packer_cli.simulate(plan, **models["8b"])
    assert simulation.overall.seconds == pytest.approx(seconds(rows["balanced"]))
    assert simulation.naive_at_best.seconds == pytest.approx(seconds(rows["naive"]))
    assert simulation.naive_at_best.name.endswith("--lockstep 8")

    # Replicas that keep their weights are as they are without the option.
    _, without = compared(lengths, "balanced,wlb", trainer="any", groups="64k:8", **models["8b"])
    _, beside = compared(lengths, "balanced,wlb", trainer="any", groups="64k:8", **options)
    assert seconds(beside["wlb"]) == seconds(without["wlb"])

    auto = packer_cli.plan(lengths, groups="auto", gpus=GPUS, trainer="any", **STEPS, **options)
    assert auto.group_choice.lockstep == "8"
    assert all(8 % group.num_gpus == 0 and group.tp_size == group.pp_size == 1 for group in auto.groups)

    _, able = compared(lengths[lengths > 4000], "all", **options)
    assert able.keys().isdisjoint({"flexsp:all", "flexsp", "batchada", "fcp", "bytescale", "megatron"})
    for refused in ({"strategy": "flexsp"}, {"parallel": "tp=2"}, {"lockstep": "6"}):
        with pytest.raises(ConfigError, match=r"^--lockstep \d: so many GPUs must divide"):
            packer_cli.plan(lengths, **{"groups": "64k", "gpus": GPUS, **STEPS, **options, **refused})
    short = {"groups": "4k", "gpus": 32, "lockstep": "4", "profile": str(ROOT / "tests/groups/data/hbp-table-4.json")}
    with pytest.raises(ConfigError, match="a profile does not say what fewer GPUs gather"):
        packer_cli.plan(lengths[lengths < 4000], **short)
    with pytest.raises(
        ConfigError, match="--lockstep half must be all, 1, or the number of GPUs that share the weights"
    ):
        validate(PlanConfig, {"groups": "1k", "gpus": 8, "lockstep": "half"})


@pytest.mark.slow
def test_a_strategy_that_the_chosen_layout_rules_out_is_left_out(models, lengths):
    """Named as it is; only groups that are named, too, make that an error."""
    options = {"gpus": 64, "trainer": "megatron", **STEPS, **models["70b"]}
    result = packer_cli.compare(lengths, strategies="balanced,bytescale", groups="auto", **options)
    assert [(row.name, row.error) for row in result.rows] == [("balanced", None)]
    assert all(group.pp_size > 1 for group in result.config.groups)
    with pytest.raises(ConfigError, match="plans no pipelines"):
        packer_cli.compare(lengths, strategies="balanced,bytescale", groups="64k", parallel="pp=4", **options)


@pytest.mark.slow
def test_a_few_samples_run_where_their_plans_are_fastest(models):
    """Most GPUs stay idle in most layouts, which no estimate knows."""
    few = np.array([500, 3000, 30_000, 9000, 900, 1200], dtype=np.int32)
    auto = packer_cli.plan(few, groups="auto", gpus=GPUS, trainer="any", **STEPS, **models["8b"])
    best = packer_cli.simulate(auto, trainer="any", **models["8b"]).overall.seconds
    layouts = [("", f":{sp}") for sp in (1, 4, 16)] + [(text, "") for text in ("cp=4", "cp=16", "tp=2,cp=4", "tp=8")]
    for (parallel, degree), length, way in itertools.product(layouts, ("30k", "40k", "128k"), ("all", "1")):
        given = {"groups": f"{length}{degree}", "parallel": parallel or None, "lockstep": way}
        assert best <= 1.005 * alone(few, "balanced", **given, **models["8b"])


@pytest.mark.parametrize(
    ("strategy", "parallel"),
    [
        ("balanced", None),
        ("hydraulis", None),
        pytest.param("hydraulis", "tp=2", marks=pytest.mark.slow),
        pytest.param("megatron", None, marks=pytest.mark.slow),
        ("megatron", "tp=2"),
        pytest.param("balanced", "tp=2", marks=pytest.mark.slow),
        pytest.param("dp-balanced", None, marks=pytest.mark.slow),
        pytest.param("dp-balanced", "tp=2", marks=pytest.mark.slow),
    ],
)
def test_automatic_groups_of_every_kind_of_strategy(models, lengths, strategy, parallel):
    """Their layouts are judged by what they run, and one that a strategy cannot plan is left out."""
    options = {"gpus": GPUS, "strategy": strategy, "parallel": parallel, **STEPS, **models["8b"]}
    found = packer_cli.plan(lengths, groups="auto", **options)
    assert found.group_choice.lockstep == found.config.lockstep
    if strategy != "hydraulis":
        named = packer_cli.plan(lengths, groups="auto", lockstep=found.config.lockstep, **options)
        assert named.groups == found.groups
    if (strategy, parallel) != ("balanced", None):  # As `test_automatic_groups_choose_how_replicas_run` plans it.
        packer_cli.plan(lengths, groups="auto", **options, trainer="any")


def test_a_trainer_that_can_run_no_layout(models, lengths):
    with pytest.raises(ConfigError, match=r"^--trainer sp,cp: it can run no layout; name more of what it can do"):
        packer_cli.plan(lengths, groups="auto", gpus=GPUS, trainer="sp,cp", **STEPS, **models["8b"])


def test_a_row_of_several_seeds_has_means_everywhere(models, lengths):
    result, rows = compared(lengths, "balanced,naive", seeds=3, sort="epoch", **models["8b"])
    for row in rows.values():
        each = [repeat.simulation.overall.seconds for repeat in row.repeats]
        assert len(set(each)) == 3 == len(row.repeats)
        assert seconds(row) == pytest.approx(np.mean(each))
        assert row.deviations["seconds"] == pytest.approx(np.std(each, ddof=1))
        assert row.overall.abr == pytest.approx(np.mean([repeat.overall.abr for repeat in row.repeats]))
    assert [row.name for row in result.rows] == sorted(rows, key=lambda name: seconds(rows[name]))


def test_a_sample_stands_for_all(models, lengths):
    """Its epochs are scaled, and a larger one deviates less."""
    _, whole = compared(lengths, "balanced", **models["8b"])
    _, few = compared(lengths, "balanced", sample=300, **models["8b"])
    assert seconds(few["balanced"]) == pytest.approx(seconds(whole["balanced"]), rel=0.2)
    assert few["balanced"].deviations["seconds"] > 0
    assert len(few["balanced"].repeats) == 3
    samples = packer_cli.plan(lengths, groups="64k", gpus=1).samples
    weighted = type(samples)(lengths=lengths, sources=np.zeros(len(lengths), np.int16), weights=(2.0,))
    with pytest.raises(ConfigError, match="--sample draws from samples that an epoch has once each"):
        _draws(weighted, RepeatConfig(sample=10), 0)


@pytest.mark.slow
def test_naive_packing_of_trees_is_at_its_best_too(models, tmp_path):
    pairs = [
        {"prompt": f"{'why ' * (20 + 7 * i)}?", "chosen": "yes " * (5 + i), "rejected": "no " * (9 + i)}
        for i in range(60)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    tokenizer = str(ROOT / "examples/sample/tokenizer")
    result = packer_cli.compare(
        tmp_path / "pairs.jsonl", tokenizer=tokenizer, groups="1k:1,4k:4", gpus=8, strategies="balanced,naive",
        **models["8b"],
    )  # fmt: skip
    naive = next(row for row in result.rows if row.name == "naive")
    assert {each.request.groups[-1].sp_size for each in naive.candidates} >= {1, 2, 4, 8}
    assert all(each.request.limits for each in naive.candidates)
