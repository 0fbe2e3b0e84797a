"""What `hbpack rebalance` refuses, and what it says."""

from __future__ import annotations

import json
from typing import Any

from packer_cli.cli.main import main
from packer_cli.format.constants import STATE_VERSION
from packer_cli.sizes import counted
from tests.cli_runner import run
from tests.rebalance.sets import loader, manifest_of
from tests.reference import home, tree


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
        "--gpus 5: a replica has 2 GPUs (sp2), which must divide it; choose 4 or 6, or plan with other degrees"
    )
    assert message("--gpus", 8, "--from-step", good.num_steps + 1) == (
        f"--from-step {good.num_steps + 1}: step {good.num_steps + 1} of epoch 0 is not there; on 4 GPUs the epoch "
        f"has steps 0 to {good.num_steps - 1}, and {good.num_steps} is its end"
    )
    assert message("--gpus", 8, "--state", file, "--from-step", 1) == (
        "--state says where the run stopped; leave out --from-step and --epoch"
    )
    assert message("--gpus", 8, "--state", file) == (
        f"--state {str(file)!r} cannot be read: No such file or directory; name a file that holds ds.state_dict()"
    )
    assert of_state("{") == (
        f"--state {str(file)!r} is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1)); save ds.state_dict() with json.dump"
    )
    shape = f"--state {str(file)!r} is not what state_dict() of a PackedDataset gives; save that, in a file as JSON"
    assert of_state([]) == of_state({"epoch": 1}) == shape
    for saved in ({}, {"PackedDataState": 1}, {"PackedDataState": []}, {"PackedDataState": {"attributes": None}}):
        assert of_state({"stateful_callbacks": saved}) == shape  # A Trainer's, of other data.
    assert of_state(good.state_dict(1) | {"step": -1}) == (
        f"--state {str(file)!r} has no valid step; it was changed, use another one"
    )
    assert of_state(good.state_dict(1) | {"epoch": 10**20}) == (
        f"--state {str(file)!r} is of epoch {10**20}, and the last is 2147483647; it was changed, use another one"
    )
    too_late = f"--epoch must be at most 2147483647, got {10**20}"
    assert message("--gpus", 8, "--from-step", 3, "--epoch", 10**20) == too_late
    end = loader.PackedDataset(out, 0, 4, 2**31 - 1).num_steps
    assert message("--gpus", 8, "--from-step", end, "--epoch", 2**31 - 1) == (
        f"--from-step {end}: epoch 2147483647 was the last one; choose an earlier place"
    )
    assert message("--gpus", 8, "--from-step", 10**20) == (
        f"--from-step {10**20}: step {10**20} of epoch 0 is not there; on 4 GPUs the epoch has steps 0 to "
        f"{good.num_steps - 1}, and {good.num_steps} is its end"
    )
    assert of_state(good.state_dict(1) | {"version": 9}) == (
        f"--state {str(file)!r} has version 9; this release reads version {STATE_VERSION}; resume with the release "
        "that saved it, or start from the first step of a set that you pack again"
    )
    assert of_state(good.state_dict(inside)) == (
        f"--state {str(file)!r} is inside step {steps[inside]} (iterations {first} to {last}, {inside} comes next), "
        f"and GPUs can change only between two steps; save the state after a step's last batch, or give --from-step "
        f"{steps[inside]}, which runs {counted(inside - first, 'iteration')} again"
    )
    end = steps.index(1)
    assert of_state(good.state_dict(0) | {"iteration": last + 1}) == (
        f"--state {str(file)!r}: iteration {last + 1} is not in step 0, which has 0 to {end - 1}; it was changed or "
        "is of another packed set"
    )
    assert of_state(good.state_dict(0) | {"fingerprint": "x"}) == (
        f"--state {str(file)!r} is of the packed set x, and {str(out)!r} is and was "
        f"{manifest_of(out)['fingerprint']}; name the folder that the run read"
    )
    assert message("--gpus", 8, "--global-tokens", "0") == "--global-tokens must be at least 1, got 0"
    plan = home(out) / "plan.arrow"
    plan.write_bytes(b"x")
    assert message("--gpus", 8, code=1) == f"'{plan}' is damaged (File is too small: 1); run hbpack write again"
    assert run(main, "write", out).code == run(main, "rebalance", out, "--gpus", 8).code == 0
    (out / "hbpack.json").unlink()
    assert message("--gpus", 8) == f"'{out}' holds no packed data set (no hbpack.json); run hbpack write {out}"


def test_an_export_says_that_an_epoch_is_not_whole(out, tmp_path):
    assert run(main, "rebalance", out, "--gpus", 8, "--epoch", 0, "--from-step", 2).code == 0
    done = run(main, "export", out, "--to", "parquet", "--output", tmp_path / "use")
    assert done.code == 0
    assert done.stderr.startswith(
        "epoch 0 is exported from step 2 on, at which the set was rebalanced; --order packs exports all packs\n"
    )
    assert (
        "epoch 0" not in run(main, "export", out, "--to", "parquet", "--order", "packs", "-o", tmp_path / "all").stderr
    )
