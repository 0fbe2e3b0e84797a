"""`hbpack rebalance`: another number of GPUs in the middle of an epoch; nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli import rebalance as module
from packer_cli.cli import main
from packer_cli.errors import FormatError, PlanError
from packer_cli.plan.balance import parse_balance
from packer_cli.plan.build import PlanRules, build_plan
from packer_cli.plan.check import check_plan
from packer_cli.plan.cost import pack_tokens_and_work
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.resume import DealRules, check_rest, deal_epoch, rest_of_epoch, short_packs
from packer_cli.plan.schedule import StepRules
from packer_cli.plan.types import FILLER, Group, Pieces, Plan
from packer_cli.rebalance import rebalance
from packer_cli.shards.stop import Stop
from tests.cli_runner import run
from tests.reference import tree

loader = pytest.importorskip("packer_cli.loader", exc_type=ImportError)


@pytest.fixture(scope="module")
def planned(tmp_path_factory, repo) -> Path:
    """A set for 4 GPUs, degrees 1 and 2, two epochs, several iterations a step."""
    root = tmp_path_factory.mktemp("rebalance")
    sample = repo / "examples" / "sample"
    chats = root / "chats.jsonl"
    with (sample / "chats.jsonl").open(encoding="utf-8") as file:
        chats.write_text("".join(next(file) for _ in range(300)), encoding="utf-8")
    done = run(
        main, "pack", chats, "--tokenizer", sample / "tokenizer", "--groups", "512:1,2k:2", "--gpus", 4, "--epochs", 2,
        "--global-tokens", "6k", "--shard-size", "64KiB", "--output", root / "out", "--workers", 1,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return root / "out"


@pytest.fixture
def out(planned, tmp_path) -> Path:
    return Path(shutil.copytree(planned, tmp_path / "out"))


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "hbpack.json").read_text())


def all_packs(folder: Path) -> Counter:
    return Counter(range(sum(group["num_packs"] for group in manifest_of(folder)["groups"])))


def read_steps(folder: Path, epoch: int, num_steps: int | None) -> tuple[Counter, Counter, dict[str, Any]]:
    """Run steps of an epoch on all ranks, from where the set begins: (packs, samples, state after them)."""
    num_gpus = manifest_of(folder)["num_gpus"]
    packs, samples, states = Counter(), Counter(), []
    for rank in range(num_gpus):
        data = loader.PackedDataset(folder, rank, num_gpus, epoch=epoch, sp_slice=False)
        first = data.step_of(0)
        end = data.num_steps if num_steps is None else min(first + num_steps, data.num_steps)
        for i, batch in enumerate(data):
            if batch["step"] >= end:
                i -= 1
                break
            assert batch["step"] >= first
            if batch["sp_rank"] == 0 and batch["pack_id"] >= 0:
                packs[batch["pack_id"]] += 1
                samples.update(batch["sample_ids"].tolist())
        states.append(data.state_dict(i + 1 if end > first else 0))
    assert states == [states[0]] * num_gpus
    return packs, samples, states[0]


def shard_bytes(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("shards/*/*.arrow"))}


def test_32_to_64_to_16_gpus_with_the_command_line(tmp_path, repo):
    sample, folder = repo / "examples" / "sample", tmp_path / "out"
    done = run(
        main, "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer",
        "--groups", "1k:1,2k:2,8k:8", "--gpus", 32, "--shard-size", "256KiB", "--output", folder, "--workers", 1,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    before, whole = shard_bytes(folder), all_packs(folder)
    seen, samples = Counter(), Counter()
    state = None
    for num_gpus, num_steps in ((32, 5), (64, 3), (16, None)):
        if num_gpus != 32:
            (tmp_path / "state.json").write_text(json.dumps(state))
            done = run(main, "rebalance", folder, "--gpus", num_gpus, "--state", tmp_path / "state.json")
            assert done.code == 0, done.stderr
            assert f"to {num_gpus} GPUs" in done.stderr
            again = tree(folder)
            done = run(main, "rebalance", folder, "--gpus", num_gpus, "--state", tmp_path / "state.json")
            assert done.stderr == (f"the set is for {num_gpus} GPUs already, epoch 0 from step {state['step']} on\n")
            assert tree(folder) == again
        packs, got, state = read_steps(folder, 0, num_steps)
        assert not packs & seen
        seen += packs
        samples += got
    assert seen == whole
    packs, got, _ = read_steps(folder, 1, None)
    assert packs == whole
    assert got == samples
    assert shard_bytes(folder) == before
    assert run(main, "stats", folder, "--json").stdout.count('"num_fillers"') >= 4
    assert run(main, "write", folder, "--shard-size", "256KiB").stderr.endswith(
        "the shards are up to date, rebalanced to 16 GPUs\n"
    )


@settings(max_examples=12)
@given(
    epoch=st.sampled_from([0, 1, 3]),
    moves=st.lists(st.tuples(st.sampled_from([2, 4, 6, 8]), st.integers(0, 6)), min_size=1, max_size=3),
)
def test_every_sample_once_whatever_the_moves(planned, tmp_path_factory, epoch, moves):
    """Written epochs and those that the loader makes; states from the loader; moves without a step between them."""
    folder = tmp_path_factory.mktemp("moves") / "out"
    shutil.copytree(planned, folder, copy_function=os.link)  # what is rewritten is replaced, never changed
    whole = all_packs(folder)
    seen, samples, expected = Counter(), Counter(), read_steps(folder, 0, None)[1]
    steps = 2
    for num_gpus, next_steps in moves:
        packs, got, state = read_steps(folder, epoch, steps)
        seen, samples, steps = seen + packs, samples + got, next_steps
        stop = Stop(name="state", **{key: state[key] for key in ("fingerprint", "epoch", "step", "iteration")})
        manifest, _ = rebalance(folder, num_gpus, stop)
        if manifest.first_epoch > epoch:
            break
        assert manifest.epochs[0].first_step in (state["step"], 0)
    if manifest.first_epoch == epoch:
        packs, got, state = read_steps(folder, epoch, None)
        seen, samples = seen + packs, samples + got
    assert seen == whole
    assert samples == expected
    for later in (epoch + 1, epoch + 2):
        assert read_steps(folder, later, None)[:2] == (whole, expected)
    shutil.rmtree(folder.parent)


def small_plan(lengths: list[int], num_gpus: int, balance: str = "sort") -> Plan:
    groups = (Group(capacity=16), Group(capacity=64, sp_size=2))
    pieces = Pieces(
        sample=np.arange(len(lengths)),
        start=np.zeros(len(lengths), dtype=np.int64),
        length=np.array(lengths, dtype=np.int32),
    )
    algorithm = REGISTRY["bfd"]
    rules = PlanRules(
        groups=groups, num_gpus=num_gpus, algorithm=algorithm, packing_options=algorithm.options(),
        balance=parse_balance(balance), steps=StepRules(global_tokens=100),
    )  # fmt: skip
    return build_plan(pieces, rules)


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=80),
    gpus=st.lists(st.sampled_from([2, 4, 8, 16]), min_size=2, max_size=4),
    share=st.floats(0, 1),
    balance=st.sampled_from(["none", "sort", "window:2", "refine"]),
)
def test_a_rest_is_dealt_whole_in_the_fewest_iterations(lengths, gpus, share, balance):
    plan = small_plan(lengths, gpus[0], balance)
    is_short = short_packs(plan.epochs[0], plan.packs, plan.groups)
    schedule, run_before = plan.epochs[0], Counter()
    left = np.arange(len(plan.packs))
    for number, num_gpus in enumerate(gpus[1:]):
        step = int(schedule.num_steps * share)
        done = schedule.slot_pack[schedule.iteration_step[schedule.slot_iteration] < step]
        run_before.update(done[done != FILLER].tolist())
        left, iteration = rest_of_epoch(schedule, step)
        assert iteration == (schedule.iteration_step < step).sum()
        assert run_before + Counter(left.tolist()) == Counter(range(len(plan.packs)))
        if not len(left):
            return
        rules = DealRules(
            num_gpus=num_gpus, balance=parse_balance(balance), steps=StepRules(global_tokens=100), seed=1
        )
        schedule = deal_epoch(plan, left, is_short, rules, number)
        check_rest(plan, schedule, left, num_gpus)
        by_group = np.bincount(plan.packs.group[left], minlength=2)
        assert schedule.num_iterations == sum(
            -(-n // (num_gpus // sp)) for n, sp in zip(by_group, (1, 2), strict=True)
        )
    whole = deal_epoch(plan, np.arange(len(plan.packs)), is_short, rules, 5)
    check_plan(Plan(groups=plan.groups, num_gpus=num_gpus, pieces=plan.pieces, packs=plan.packs, epochs=(whole,)))


@pytest.mark.parametrize("linear", [0, 100])
def test_the_rest_is_balanced_by_work(linear):
    """Sorted and dealt, the spread inside an iteration is far below that of packs at random."""
    plan = small_plan(np.random.default_rng(0).integers(17, 65, 400).tolist(), 8)
    is_short = short_packs(plan.epochs[0], plan.packs, plan.groups)
    work = np.append(pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, plan.pieces.length, linear)[1], 0)
    spreads = []
    for balance in ("sort", "none"):
        rules = DealRules(num_gpus=16, balance=parse_balance(balance), steps=StepRules(), seed=0, linear=linear)
        schedule = deal_epoch(plan, np.arange(0, len(plan.packs), 2), is_short, rules, 0)
        slots = work[schedule.slot_pack.reshape(schedule.num_iterations, 8)]
        spreads.append(np.mean(1 - slots.mean(axis=1) / slots.max(axis=1)))
    assert spreads[0] < spreads[1] / 3


def test_the_check_sees_a_pack_that_ran_before_or_is_missing():
    plan = small_plan([16] * 12, 4)
    rules = DealRules(num_gpus=2, balance=parse_balance("sort"), steps=StepRules(), seed=0)
    is_short = np.zeros(len(plan.packs), dtype=bool)
    schedule = deal_epoch(plan, np.arange(4, 12), is_short, rules, 0)
    check_rest(plan, schedule, np.arange(4, 12), 2)
    with pytest.raises(PlanError, match="is scheduled and was run before"):
        check_rest(plan, schedule, np.arange(5, 12), 2)
    with pytest.raises(PlanError, match="pack 0 runs 0 times; it must run exactly once"):
        check_rest(plan, schedule, np.arange(3, 12), 2)


def test_the_same_bytes_each_time(planned, out, tmp_path):
    other = Path(shutil.copytree(planned, tmp_path / "other"))
    for folder in (out, other):
        rebalance(folder, 8, Stop(name="", epoch=0, step=2))
    assert tree(out) == tree(other)
    before = tree(planned)
    after = tree(out)
    assert {path for path in before if after[path] != before[path]} == {"hbpack.json"}
    assert all(path.startswith("ranks/rebalanced-001/") for path in set(after) - set(before))


def test_a_killed_run_leaves_the_set_as_it_was(out, monkeypatch):
    before = tree(out)
    whole = all_packs(out)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("write_ranks", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(KeyboardInterrupt):
                rebalance(out, 8, Stop(name="", epoch=0, step=2))
        after = tree(out)
        assert {path: after[path] for path in before} == before
        assert read_steps(out, 0, None)[0] == whole
    rebalance(out, 8, Stop(name="", epoch=0, step=2))
    assert sum(read_steps(out, 0, None)[0].values()) < len(whole)


def test_an_older_state_is_taken_up_again(out):
    """A run on the new GPUs went wrong; it goes on from a state before the change, on others."""
    whole = all_packs(out)
    packs, _, state = read_steps(out, 0, 2)
    rebalance(out, 8, Stop(name="", epoch=0, step=5))
    stop = Stop(name="state", **{key: state[key] for key in ("fingerprint", "epoch", "step", "iteration")})
    manifest, is_new = rebalance(out, 2, stop)
    assert is_new
    assert len(manifest.history) == 2
    assert packs + read_steps(out, 0, None)[0] == whole


def test_steps_keep_their_tokens_or_get_others(out):
    tokens = {}
    for name, wanted in (("as planned", None), ("more", 24 * 1024)):
        manifest, _ = rebalance(out, 8, Stop(name="", epoch=0, step=0), wanted)
        assert manifest.config["plan"]["global_tokens"] == wanted or wanted is None
        tokens[name] = sum(group.num_tokens for group in manifest.groups) / manifest.epochs[0].num_steps
    assert tokens["as planned"] == pytest.approx(6 * 1024, rel=0.2)
    assert tokens["more"] >= 2 * tokens["as planned"]


def test_the_old_state_is_refused_with_what_to_do(out, tmp_path):
    _, _, state = read_steps(out, 0, 2)
    _, _, later = read_steps(out, 0, 3)
    old = state["fingerprint"]
    stop = Stop(name="state", **{key: state[key] for key in ("fingerprint", "epoch", "step", "iteration")})
    new = rebalance(out, 8, stop)[0].fingerprint
    data = loader.PackedDataset(out, 0, 8)
    assert (data.epoch, data.step_of(0)) == (0, 2)
    begin = f"the loader state is of the packed set {old} and {str(out)!r} is {new}, dealt anew from 4 to 8 GPUs at "
    with pytest.raises(FormatError) as error:
        data.load_state_dict(state)
    assert str(error.value) == (
        f"{begin}the very place of this state: load no state, a new PackedDataset begins there (epoch 0, step 2)"
    )
    with pytest.raises(FormatError) as error:
        data.load_state_dict(later)
    assert str(error.value) == (
        f"{begin}another place (epoch 0, step 2): save this state as JSON, run hbpack rebalance --gpus 8 --state "
        "FILE, and load no state then"
    )
    own = data.state_dict(1)
    data.load_state_dict(own)
    assert data.position == 1


def test_without_a_place_what_is_in_force_is_dealt_again(out):
    """As --help and docs/resume.md say: after an earlier rebalance from its beginning, not from that of the run."""
    assert run(main, "rebalance", out, "--gpus", 2, "--from-step", 2).code == 0
    rest, _, _ = read_steps(out, 0, None)
    assert rest < all_packs(out)
    done = run(main, "rebalance", out, "--gpus", 8)
    assert (done.code, done.stderr.splitlines()[0].split(":")[0]) == (0, "dealt epoch 0 from step 2 on to 8 GPUs")
    assert read_steps(out, 0, None)[0] == rest
    assert read_steps(out, 1, None)[0] == all_packs(out)


def test_epochs_that_were_over_are_refused(out):
    rebalance(out, 2, Stop(name="", epoch=1, step=1))
    assert loader.PackedDataset(out, 0, 2).epoch == 1
    with pytest.raises(
        ValueError, match=r"^epoch is 0: it was over when the set was dealt to 2 GPUs; the first is 1$"
    ):
        loader.PackedDataset(out, 0, 2, 0)
    done = run(main, "rebalance", out, "--gpus", 4, "--from-step", 0, "--epoch", 0)
    assert (done.code, done.stderr) == (
        2, "error: --from-step 0: epoch 0 was over when the set was dealt to 2 GPUs; its first is 1\n"
    )  # fmt: skip


def test_messages(out, tmp_path):
    file = tmp_path / "state.json"
    good = loader.PackedDataset(out, 0, 4)
    steps = [good.step_of(i) for i in range(len(good))]
    inside = next(i for i in range(1, len(steps)) if steps[i] == steps[i - 1])
    first = steps.index(steps[inside])
    last = len(steps) - 1 - steps[::-1].index(steps[inside])

    def message(*arguments: object, code: int = 2) -> str:
        before = tree(out)
        done = run(main, "rebalance", out, *arguments)
        assert done.code == code
        assert tree(out) == before
        return done.stderr.removeprefix("error: ").removesuffix("\n")

    def of_state(value: Any) -> str:
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        return message("--gpus", 8, "--state", file)

    assert message("--gpus", 5) == (
        "--gpus 5: the SP degree 2 of group 2k must divide it, since the shards stay as they are; choose 4 or 6, or "
        "pack again with other --groups"
    )
    assert message("--gpus", 8, "--from-step", good.num_steps + 1) == (
        f"--from-step {good.num_steps + 1}: step {good.num_steps + 1} of epoch 0 is not there; on 4 GPUs the epoch "
        f"has steps 0 to {good.num_steps - 1}, and {good.num_steps} is its end"
    )
    assert message("--gpus", 8, "--state", file, "--from-step", 1) == (
        "--state says where the run stopped; leave out --from-step and --epoch"
    )
    assert message("--gpus", 8, "--state", file) == f"--state {str(file)!r} cannot be read: No such file or directory"
    assert of_state("{").startswith(f"--state {str(file)!r} is not JSON (")
    shape = (
        f"--state {str(file)!r} is no state of a PackedDataset, which has fingerprint, epoch, step and iteration; "
        "save ds.state_dict() with json.dump"
    )
    assert of_state([]) == of_state({"epoch": 1}) == of_state(good.state_dict(1) | {"step": -1}) == shape
    assert of_state(good.state_dict(1) | {"epoch": 10**20}) == (
        f"--state {str(file)!r} is of epoch {10**20}, and the last is 2147483647; it was changed, use another one"
    )
    assert message("--gpus", 8, "--from-step", 3, "--epoch", 10**20) == (
        f"invalid value for '--epoch': {10**20} is not in the range 0<=x<=2147483647; see hbpack rebalance --help"
    )
    end = loader.PackedDataset(out, 0, 4, 2**31 - 1).num_steps
    assert message("--gpus", 8, "--from-step", end, "--epoch", 2**31 - 1) == (
        f"--from-step {end}: epoch 2147483647 was the last that there is; choose an earlier place"
    )
    assert message("--gpus", 8, "--from-step", 10**20).startswith(
        f"--from-step {10**20}: step {10**20} of epoch 0 is "
    )
    assert of_state(good.state_dict(1) | {"version": 9}).startswith(f"--state {str(file)!r} has version 9, ")
    assert of_state(good.state_dict(inside)) == (
        f"--state {str(file)!r} is inside step {steps[inside]} (iterations {first} to {last}, {inside} comes next), "
        f"and GPUs can change only between two steps; save the state after a step's last batch, or give --from-step "
        f"{steps[inside]}, which runs {inside - first} iterations again"
    )
    assert "which has" in of_state(good.state_dict(0) | {"iteration": last + 1})
    assert of_state(good.state_dict(0) | {"fingerprint": "x"}) == (
        f"--state {str(file)!r} is of the packed set x, and {str(out)!r} is and was "
        f"{manifest_of(out)['fingerprint']}; name the folder that the run read"
    )
    assert message("--gpus", 8, "--global-tokens", "0").startswith("--global-tokens must be at least 1")
    (out / "plan.arrow").write_bytes(b"x")
    assert "is damaged" in message("--gpus", 8, code=1)
    (out / "hbpack.json").unlink()
    assert message("--gpus", 8).endswith("holds no packed data set (no hbpack.json); run hbpack pack")


def test_write_repairs_a_rebalanced_set_as_it_was_planned(planned, out):
    rebalance(out, 8, Stop(name="", epoch=0, step=2))
    assert (
        run(main, "write", out, "--shard-size", "64KiB").stderr == "the shards are up to date, rebalanced to 8 GPUs\n"
    )
    (out / "ranks/rebalanced-001/epoch-000/rank-00003.arrow").unlink()
    done = run(main, "write", out, "--shard-size", "64KiB")
    assert done.code == 0
    assert "the set becomes as it was planned, for 4 GPUs; run hbpack rebalance again" in done.stderr
    assert tree(out) == tree(planned)
