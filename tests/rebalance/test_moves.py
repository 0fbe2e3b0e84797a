"""`hbpack rebalance`: another number of GPUs in the middle of an epoch; nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.cli.main import main
from packer_cli.commands import rebalance as module
from packer_cli.commands.rebalance import Stop
from packer_cli.errors import ConfigError, FormatError
from tests.cli_runner import run
from tests.rebalance.sets import all_packs, deal, loader, read_steps, shard_bytes
from tests.reference import home, tree


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
    folder = tmp_path_factory.mktemp("moves") / "out"  # Of links: what is rewritten is replaced, never changed.
    shutil.copytree(
        planned, folder, copy_function=os.link, symlinks=True
    )  # what is rewritten is replaced, never changed
    whole = all_packs(folder)
    seen, samples, expected = Counter(), Counter(), read_steps(folder, 0, None)[1]
    steps = 2
    for num_gpus, next_steps in moves:
        packs, got, state = read_steps(folder, epoch, steps)
        seen, samples, steps = seen + packs, samples + got, next_steps
        stop = Stop(name="state", **{key: state[key] for key in ("fingerprint", "epoch", "step", "iteration")})
        manifest, _ = deal(folder, num_gpus, stop)
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


def test_the_same_bytes_each_time(planned, out, tmp_path):
    other = Path(shutil.copytree(planned, tmp_path / "other", symlinks=True))
    for folder in (out, other):
        deal(folder, 8, Stop(name="", epoch=0, step=2))
    assert tree(out) == tree(other)
    before = tree(planned)
    after = tree(out)
    assert {path for path in before if after[path] != before[path]} == {"hbpack.json", f"{home(out).name}/hbpack.json"}
    assert all(path.startswith(f"{home(out).name}/ranks/rebalanced-001/") for path in set(after) - set(before))


def test_a_killed_run_leaves_the_set_as_it_was(out, monkeypatch):
    before = tree(out)
    whole = all_packs(out)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("write_epochs", "write_manifest"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(KeyboardInterrupt):
                deal(out, 8, Stop(name="", epoch=0, step=2))
        after = tree(out)
        assert {path: after[path] for path in before} == before
        assert read_steps(out, 0, None)[0] == whole
    deal(out, 8, Stop(name="", epoch=0, step=2))
    assert sum(read_steps(out, 0, None)[0].values()) < len(whole)


def test_an_older_state_is_taken_up_again(out):
    """A run on the new GPUs went wrong; it goes on from a state before the change, on others."""
    whole = all_packs(out)
    packs, _, state = read_steps(out, 0, 2)
    deal(out, 8, Stop(name="", epoch=0, step=5))
    stop = Stop(name="state", **{key: state[key] for key in ("fingerprint", "epoch", "step", "iteration")})
    manifest, is_new = deal(out, 2, stop)
    assert is_new
    assert len(manifest.history) == 2
    assert packs + read_steps(out, 0, None)[0] == whole


def test_steps_keep_their_tokens_or_get_others(out):
    tokens = {}
    for name, wanted in (("as planned", None), ("more", 24 * 1024)):
        manifest, _ = deal(out, 8, Stop(name="", epoch=0, step=0), wanted)
        assert manifest.config.plan["global_tokens"] == wanted or wanted is None
        tokens[name] = sum(group.num_tokens for group in manifest.groups) / manifest.epochs[0].num_steps
    assert tokens["as planned"] == pytest.approx(6 * 1024, rel=0.2)
    assert tokens["more"] >= 2 * tokens["as planned"]


def test_the_old_state_is_refused_with_what_to_do(out, tmp_path):
    _, _, state = read_steps(out, 0, 2)
    _, _, later = read_steps(out, 0, 3)
    old = state["fingerprint"]
    stop = Stop(name="state", **{key: state[key] for key in ("fingerprint", "epoch", "step", "iteration")})
    new = deal(out, 8, stop)[0].fingerprint
    data = loader.PackedDataset(out, 0, 8)
    assert (data.epoch, data.step_of(0)) == (0, 2)
    begin = (
        f"the loader state belongs to the packed set {old}, but {str(out)!r} is {new}, rebalanced from 4 to 8 GPUs "
    )
    begin += "at "
    with pytest.raises(FormatError) as error:
        data.load_state_dict(state)
    assert str(error.value) == (
        f"{begin}exactly the place of this state: do not load it, since a new PackedDataset begins there "
        "(epoch 0, step 2)"
    )
    with pytest.raises(FormatError) as error:
        data.load_state_dict(later)
    assert str(error.value) == (
        f"{begin}another place (epoch 0, step 2): save this state as JSON, run hbpack rebalance --gpus 8 --state "
        "FILE, and then do not load a state"
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
    deal(out, 2, Stop(name="", epoch=1, step=1))
    assert loader.PackedDataset(out, 0, 2).epoch == 1
    with pytest.raises(
        ConfigError, match=r"^epoch 0 was over when the set was dealt to 2 GPUs; choose 1 or a later one$"
    ):
        loader.PackedDataset(out, 0, 2, 0)
    done = run(main, "rebalance", out, "--gpus", 4, "--from-step", 0, "--epoch", 0)
    assert (done.code, done.stderr) == (
        2, "error: --from-step 0: epoch 0 was over when the set was dealt to 2 GPUs; choose 1 or a later one\n"
    )  # fmt: skip


def test_write_repairs_a_rebalanced_set(planned, out, tmp_path):
    deal(out, 8, Stop(name="", epoch=0, step=2))
    assert (
        run(main, "write", out, "--shard-size", "64KiB").stderr == "the shards are up to date, rebalanced to 8 GPUs\n"
    )
    whole = tree(out)
    (home(out) / "ranks/rebalanced-001/epoch-000/rank-00003.arrow").unlink()
    assert run(main, "write", out, "--shard-size", "64KiB").code == 0
    assert tree(out) == whole
    other = shutil.copytree(out, tmp_path / "other", symlinks=True)
    done = run(main, "write", other, "--shard-size", "128KiB")
    assert done.code == 0
    assert (
        "other options of shards make another version: the set becomes as it was planned, for 4 GPUs; run hbpack "
        "rebalance again" in done.stderr
    )
    (home(out) / "ranks/rebalanced-001/schedules.arrow").unlink()
    done = run(main, "write", out, "--shard-size", "64KiB")
    assert done.code == 0
    assert "the set becomes as it was planned, for 4 GPUs; run hbpack rebalance again" in done.stderr
    assert tree(out) == tree(planned)


def test_the_end_of_an_epoch_is_the_start_of_the_next(out):
    _, _, state = read_steps(out, 0, None)
    assert state["epoch"] == 0
    deal(out, 8, Stop(name="state", **{key: state[key] for key in ("fingerprint", "epoch", "step", "iteration")}))
    data = loader.PackedDataset(out, 0, 8)
    assert (data.epoch, data.position) == (1, 0)
    with pytest.raises(FormatError, match=r"at exactly the place of this state: .* \(epoch 1, step 0\)$"):
        data.load_state_dict(state)
    with pytest.raises(FormatError, match=r"at another place \(epoch 1, step 0\)"):
        data.load_state_dict({**state, "iteration": state["iteration"] - 1})
