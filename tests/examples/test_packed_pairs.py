"""`packed(DPOTrainer)` and `packed(RewardTrainer)` train as TRL's own classes on padded batches."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("peft")

import torch
import trl.trainer.utils
from datasets import Dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer

from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters import trainer_arguments
from packer_cli.loader.adapters.reference import ReferenceLogps
from packer_cli.loader.adapters.transformers import packed
from tests.cli_runner import run
from tests.examples.launcher import Launcher
from tests.examples.packed_pairs import NUM_PAIRS, NUM_STEPS, WAYS, ExactLogProbs, make_model
from tests.examples.pairs import Pair, PairSet, make_pairs
from tests.reference import home

SCRIPT = Path(__file__).with_name("packed_pairs.py")
MOST = (
    "sigmoid", "ipo", "lora", "precomputed", "reward", "reward-lora", "sft", "computed-given", "computed",
    "computed-ipo", "weighted",
)  # fmt: skip
"""Which run on one process in every run of the tests; the others are slow."""
UNLIKE = ("sigmoid", "lora", "precomputed", "reward", "sft", "computed-given", "computed-ipo")
"""Which run on two processes, too."""
SHARDED = ("sigmoid", "lora", "reward", "sft", "computed-given")
"""And with weights that these share."""
OF_PAIRS = ("rewards/", "logps/", "accuracy", "margin", "min_reward", "mean_reward", "max_reward")
"""Metrics that are exact."""

Run = Callable[..., dict[str, list[dict[str, float]]]]


@pytest.fixture(scope="module")
def run_ways(launcher: Launcher, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What a kind of trainer logs in each step, by way."""

    def run(kind: str, *ways: str, num_ranks: int = 1) -> dict[str, list[dict[str, float]]]:
        folder, tokenizer = tmp_path_factory.mktemp("pairs"), repo / "examples/sample/tokenizer"
        arguments = (folder, ",".join(ways), tokenizer, kind)
        codes, text = launcher.run(SCRIPT, *arguments, num_ranks=num_ranks, logs=folder / "logs")
        assert codes == [0] * num_ranks, text
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for line in text.splitlines():
            if line.startswith('{"way"'):
                logs = json.loads(line)
                if "grad_norm" in logs:
                    found[logs["way"]].append(logs)
        assert all(len(logs) == NUM_STEPS for logs in found.values())
        return found

    return run


@pytest.fixture(scope="module")
def stock(run_ways: Run) -> dict[str, list[dict[str, float]]]:
    return run_ways("stock", *MOST)


def assert_same(found: Any, wanted: Any) -> None:
    """As all runs compute in float64."""
    for way, logs in found.items():
        for each, other in zip(logs, wanted[way], strict=True):
            for name, value in other.items():
                if name in ("loss", "grad_norm"):
                    is_exact = (
                        name == "grad_norm" and way != "sft"
                    )  # Losses are logged, and that one made, in float32.
                    assert each[name] == pytest.approx(value, rel=1e-9 if is_exact else 1e-6), (way, name)
                elif name.startswith(OF_PAIRS):
                    # Equal completions have rewards that are equal but for their last digit, which decides.
                    ties = 1 / NUM_PAIRS if name.endswith(("accuracy", "accuracies")) else 0.0
                    assert each[name] == pytest.approx(value, rel=1e-5, abs=ties + 1e-5), (way, name)


def test_one_process_trains_as_stock_trainers_on_padded_batches(run_ways: Run, stock: Any) -> None:
    found = run_ways("packed", *MOST)
    assert_same(found, stock)
    losses = [logs["loss"] for logs in found["sigmoid"]]
    assert len({round(loss, 3) for loss in losses}) == NUM_STEPS
    # A prompt runs once.
    num_tokens = [logs["num_tokens"] for logs in found["sigmoid"]]
    assert num_tokens == sorted({int(each) for each in num_tokens})
    assert found["sigmoid"][-1]["num_tokens"] < 0.7 * stock["sigmoid"][-1]["num_tokens"]


def test_two_processes_with_unlike_numbers_of_pairs_train_as_one(run_ways: Run, stock: Any) -> None:
    """In some iterations a rank has no pair at all."""
    assert_same(run_ways("packed", *UNLIKE, num_ranks=2), stock)


@pytest.mark.slow
def test_two_processes_that_share_the_weights_train_as_one(run_ways: Run, stock: Any) -> None:
    """By FSDP2, the reference model, too."""
    assert_same(run_ways("sharded", *SHARDED, num_ranks=2), stock)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_ranks", "ways"),
    [
        ("packed", 1, WAYS.keys() - {*MOST}),
        ("packed", 2, {"ipo", "reward-lora", "computed"}),
        ("sharded", 2, {"ipo", "precomputed", "reward-lora"}),
    ],
)
def test_every_loss_trains_as_with_stock_trainers(run_ways: Run, kind: str, num_ranks: int, ways: set[str]) -> None:
    assert_same(run_ways(kind, *ways, num_ranks=num_ranks), run_ways("stock", *ways))


Make = Callable[..., Any]


@pytest.fixture
def make(repo: Path, tmp_path: Path) -> Make:
    """A trainer of one process, of pairs that nobody wrote."""

    def make(*, dataset: Any = None, others: Any = None, **options: Any) -> Any:
        dataset = PairSet(make_pairs(6), [[[4], [2]]], 0) if dataset is None else dataset
        options |= {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "disable_tqdm": True}
        options |= {"bf16": False, "logging_steps": 1}
        tokenizer = AutoTokenizer.from_pretrained(repo / "examples/sample/tokenizer")
        given = {"ref_model": make_model(seed=1), "train_dataset": dataset, "processing_class": tokenizer}
        return packed(DPOTrainer)(make_model(), args=DPOConfig(**options), **(given | (others or {})))

    return make


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loss_type": ["sigmoid", "aot"]},
            "loss_type 'aot' sorts the pairs of a micro-batch, and packed rows have",
        ),
        (
            {"loss_type": ["sft"]},
            "loss_type 'sft' is a mean over the tokens of a micro-batch, and packed rows have",
        ),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2, and the plan says how many micro-"),
        ({"activation_offloading": True}, "activation_offloading=True is not supported on packed rows"),
    ],
)
def test_losses_and_arguments_that_do_not_fit_are_refused(make: Make, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(**options)


def test_arguments_that_the_plan_decides_are_named(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    make(max_length=None, per_device_train_batch_size=1)
    assert "no effect" not in caplog.text
    make(
        max_length=512,
        per_device_train_batch_size=1,
        dataset_num_proc=2,
        pad_to_multiple_of=8,
        precompute_ref_batch_size=2,
        data_seed=1,
    )
    names = "data_seed, dataset_num_proc, max_length, pad_to_multiple_of, precompute_ref_batch_size\n"
    assert f"no effect, as the plan decides: {names}" in caplog.text


def test_an_unknown_loss_is_refused_before_anything_trains(make: Make) -> None:
    with pytest.raises(ValueError, match=r"Unknown loss type: sigmoyd\. Should be one of"):
        make(loss_type=["sigmoid", "sigmoyd"])


def test_sets_that_do_not_fit_are_refused(make: Make, pack: Callable[..., Path]) -> None:
    flat = pack("384", 1)
    for dataset in (flat, PackedDataset(flat, 0, 1)):
        with pytest.raises(ConfigError, match=re.escape(f"{str(flat)!r} has no preference pairs, and only pairs")):
            make(dataset=dataset)
    shared = PairSet(make_pairs(6), [[[6]]], 0)
    shared.degree = 2
    with pytest.raises(ConfigError, match="OUT has rows that GPUs share, and TRL needs whole samples for pairs; plan"):
        make(dataset=shared)


@pytest.mark.slow
def test_a_reference_that_a_set_lacks_runs_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numbers are kept, for the same pairs and the same reference."""
    monkeypatch.setenv("HBPACK_CACHE", str(tmp_path / "cache"))
    pairs, num_rows = make_pairs(6), 0
    pairs[5] = pairs[5]._replace(ref_rejected_logps=math.nan)
    compute = DPOTrainer.compute_ref_log_probs

    def counted(*arguments: Any) -> Any:
        nonlocal num_rows
        num_rows += 1
        return compute(*arguments)

    monkeypatch.setattr(DPOTrainer, "compute_ref_log_probs", counted)

    def rows_run(layout: Any = (((4,), (2,)),), seed: int = 1, name: str = "pairs", **options: Any) -> int:
        nonlocal num_rows
        num_rows, dataset = 0, PairSet(pairs, layout, 0)
        dataset.path, dataset.fingerprint = str(tmp_path / "OUT"), name
        trainer = make(
            dataset=dataset, precompute_ref_log_probs=True, others={"ref_model": make_model(seed=seed)}, **options
        )
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
        return num_rows

    losses: list[float] = []
    (tmp_path / "OUT").mkdir()
    assert rows_run() == 2
    (file,) = (tmp_path / "OUT" / "reference").iterdir()
    assert rows_run() == 0
    assert rows_run((((6,),),)) == 0
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-6)
    assert rows_run(seed=2) == rows_run(name="others") == rows_run(ld_alpha=0.5) == 2
    assert losses[3] != losses[0]
    assert rows_run(name="others") == 0
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert rows_run() == 2
    assert file.read_bytes() == whole
    # Where the set cannot be written to, and where its folder is something else.
    file.parent.rename(tmp_path / "away")
    file.parent.write_text("")
    assert rows_run() == 2
    assert "the reference log-probabilities are not kept in" in caplog.text
    assert [each.name for each in (tmp_path / "cache" / "reference").iterdir()] == [file.name]
    assert rows_run() == 0


def test_a_model_that_was_trained_is_not_the_reference(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HBPACK_CACHE", str(tmp_path / "cache"))
    pairs = [pair._replace(ref_chosen_logps=math.nan) for pair in make_pairs(6)]
    sets = [PairSet(pairs, [[[6]]], 0) for _ in range(3)]
    for number, dataset in enumerate(sets):
        dataset.path = dataset.fingerprint = str(number)
    trainer = make(
        dataset=sets[0],
        precompute_ref_log_probs=True,
        others={"ref_model": None, "eval_dataset": sets[1]},
        learning_rate=0.1,
        optim="sgd",
    )
    before = trainer.evaluate()["eval_loss"]
    assert before == pytest.approx(math.log(2))
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.01
    with pytest.raises(
        ConfigError, match="the model is no longer the reference: it has been trained; give the set as"
    ):
        trainer.evaluate(sets[2])


def test_other_trainers_and_releases_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class KTOTrainer:
        __module__ = "trl.trainer.kto_trainer"

    with pytest.raises(ConfigError, match="KTOTrainer does not train on packed sets: its loss compares each sample"):
        packed(KTOTrainer)
    monkeypatch.setattr(trainer_arguments, "version", lambda name: "1.15.0" if name == "trl" else version(name))
    with pytest.raises(ConfigError, match=r"trl 1.15.0 is installed, and packed\(DPOTrainer\) needs 1.16 or later"):
        make()


def test_evaluation_is_the_mean_over_pairs(make: Make) -> None:
    """Also what TRL logs, of each set apart: steps have unlike numbers of pairs."""
    pairs, others = make_pairs(9, seed=3), make_pairs(4, seed=4)
    sets = {"first": PairSet(pairs, [[[4], [3]], [[2]]], 0), "second": PairSet(others, [[[4]]], 0)}
    trainer = make(others={"eval_dataset": sets})
    metrics = trainer.evaluate()
    margins, others_margins = margins_of(pairs), margins_of(others)
    loss = mean(math.log1p(math.exp(-margin)) for margin in margins)
    assert metrics["eval_first_loss"] == pytest.approx(loss, rel=1e-6)
    assert metrics["eval_first_rewards/margins"] == pytest.approx(mean(margins), rel=1e-6)
    assert metrics["eval_first_rewards/accuracies"] == pytest.approx(mean(margin > 0 for margin in margins))
    assert metrics["eval_second_rewards/margins"] == pytest.approx(mean(others_margins), rel=1e-6)
    assert abs(mean([mean(margins[:7]), mean(margins[7:])]) - mean(margins)) > 0.05
    assert trainer.state.log_history[-1].items() >= metrics.items()
    assert not any(name.startswith("eval_rewards/") for name in metrics)
    assert trainer.evaluate(PairSet(pairs, [[[9]]], 0))["eval_loss"] == pytest.approx(loss, rel=1e-6)
    trainer.train()
    logs = next(each for each in trainer.state.log_history if "grad_norm" in each)
    assert logs["rewards/margins"] == pytest.approx(mean(margins_of(make_pairs(6))), rel=1e-6)


def margins_of(pairs: list[Pair]) -> list[float]:
    """DPO's of each pair, one sample at a time, with the models of `make`."""

    def reward(pair: Pair, rest: list[int]) -> float:
        ids, logps = torch.tensor([pair.prompt + rest]), list[float]()
        for model in (make_model(), make_model(seed=1)):
            found = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])
            logps.append(found[len(pair.prompt) - 1 :].sum().item())
        return 0.1 * (logps[0] - logps[1])

    return [reward(pair, pair.chosen) - reward(pair, pair.rejected) for pair in pairs]


def test_records_train_as_in_trl(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the texts on, by the files of a set: the same tokens, the same loss."""
    monkeypatch.setattr(trl.trainer.utils, "_ChunkedLogProbFunction", ExactLogProbs)
    words, rng = (repo / "README.md").read_text(encoding="utf-8").split(), random.Random(0)
    names = {"prompt": (5, 150), "chosen": (2, 30), "rejected": (2, 30)}
    records = [{name: " ".join(rng.choices(words, k=rng.randint(*n))) for name, n in names.items()} for _ in range(9)]
    for record in records:
        record |= {"chosen": " " + record["chosen"], "rejected": " " + record["rejected"]}
    corpus, tokenizer = tmp_path / "pairs.jsonl", repo / "examples/sample/tokenizer"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    done = run(
        main, "pack", corpus, "--tokenizer", tokenizer, "--groups", "2k:1", "--gpus", 1, "--global-tokens", "64k",
        "--workers", 1, "--output", tmp_path / "OUT",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    logs = []
    ours = (packed(DPOTrainer), tmp_path / "OUT", False), (packed(DPOTrainer), tmp_path / "OUT", True)
    for trainer_class, dataset, is_computed in (*ours, (DPOTrainer, Dataset.from_list(records), False)):
        arguments = DPOConfig(
            str(tmp_path / "run"), use_cpu=True, report_to="none", disable_tqdm=True, bf16=False, logging_steps=1,
            max_steps=1, save_strategy="no", max_length=None, precompute_ref_log_probs=is_computed,
            **({"per_device_train_batch_size": len(records)} if trainer_class is DPOTrainer else {}),
        )  # fmt: skip
        known = AutoTokenizer.from_pretrained(tokenizer)
        trainer = trainer_class(
            make_model(), make_model(seed=1), args=arguments, train_dataset=dataset, processing_class=known
        )
        trainer.train()
        logs.append(next(each for each in trainer.state.log_history if "grad_norm" in each))
    found, computed, wanted = logs
    for name in ("loss", "grad_norm", "rewards/margins"):
        assert computed[name] == pytest.approx(found[name], rel=1e-12), name
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    for name in ("grad_norm", "rewards/chosen", "rewards/margins", "logps/rejected"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-9), name
    assert found["num_tokens"] < wanted["num_tokens"]
    assert len(list((home(tmp_path / "OUT") / "reference").iterdir())) == 1
    assert run(main, "rebalance", tmp_path / "OUT", "--gpus", 2).code == 0
    again = make_model(seed=1)
    reference = ReferenceLogps(SimpleNamespace(**vars(trainer) | {"ref_model": again}), trl.trainer.utils.hash_module)
    assert reference.look_up(PackedDataset(tmp_path / "OUT", 0, 2, format="tree"), again)
    assert run(main, "verify", tmp_path / "OUT").code == 0
