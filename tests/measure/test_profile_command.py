"""`hbpack profile` on a CPU: a tiny model, in this process and under torchrun."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from packer_cli.cli.main import main
from packer_cli.config.gpu_model import read_profile
from packer_cli.cost.fit_profile import measured_model
from packer_cli.errors import InputError
from tests.cli_runner import run
from tests.measure.tiny import FAST
from tests.ranks import run_command

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("modelling", ["transformers", "plain"])
def test_a_profile_is_measured_fitted_and_read(config, tmp_path, repo, modelling):
    file = tmp_path / "profile.json"
    done = run(main, "profile", "--model", config, "-o", file, *FAST, "--gpus", 4, "--modelling", modelling,
               "--bandwidth", "10GB,1GB")  # fmt: skip
    assert done.code == 0, done.stderr
    assert "64 tokens on 1 GPU: fit with 0 of 3 layers checkpointed" in done.stderr
    assert done.stdout.startswith("Iterations on 1 x CPU, forward and backward")
    assert "Time, fitted: " in done.stdout
    assert done.stdout.splitlines()[-2] == f"wrote {file}"
    assert f". Next: hbpack groups LENGTHS --profile {file} --gpus 4" in done.stdout.splitlines()[-1]
    data = json.loads(file.read_text())
    jsonschema.validate(data, json.loads((repo / "schemas" / "profile.schema.json").read_text()))
    profile = read_profile(file)
    assert (profile.num_gpus, profile.num_measured) == (4, 1)
    found = [(row.length, row.checkpoint_layers, row.work) for row in profile.iterations]
    one, four = {64: 64**2, 192: 192**2}, {64: 4 * 16**2, 192: 4 * 48**2}
    assert found == [(size, k, work[size]) for size in (64, 192) for k in (0, 3) for work in (one, four)]
    assert all(row.seconds > 0 and row.tokens == row.length for row in profile.iterations)
    sizes = [(q, kv) for kv in (16, 64, 192) for q in (1, 16, 64, 128) if q <= kv]
    assert [(row.queries, row.keys) for row in profile.pieces] == sizes
    assert all(row.seconds > 0 for row in profile.pieces)
    assert profile.assumed["bandwidth"] == 10e9
    assert "the times are not those of a GPU" in profile.assumed["device"]
    model = measured_model(profile)
    assert model.sp_sizes == (1, 2, 4)
    assert dict(model.cost.send)[2] > 0
    # Peaks were counted, so the fit meets them; training on four GPUs holds its share of the state.
    assert profile.memory.mean_error < 0.05
    parameters = 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32 + 2 * 100 * 32
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    held = 16 * parameters / 4 + 4 * (3 * layer + 2 * 2 * 100 * 32) - 8 * parameters
    assert profile.assumed["constant_bytes_added"] == round(held)


def test_pieces_with_fewer_keys_than_queries_are_refused(tmp_path, repo):
    table = json.loads((repo / "tests/groups/data/hbp-table-4.json").read_text())
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({**table, "pieces": [{"queries": 16, "keys": 15, "seconds": 1e-3}]}))
    with pytest.raises(InputError) as error:
        read_profile(file)
    rule = "pieces.0: Value error, a piece has at least as many keys as queries, got 15 and 16"
    assert str(error.value) == f"{str(file)!r} is not a profile: {rule}; make one with hbpack profile"


@pytest.mark.slow
def test_running_out_of_memory_is_recorded(config, tmp_path, monkeypatch):
    from packer_cli.measure import subject

    run_row = subject.Subject.run

    def run_out(self, samples, checkpoint_layers, group=None):
        if sum(samples) > 100 and checkpoint_layers < 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run_row(self, samples, checkpoint_layers, group)

    monkeypatch.setattr(subject.Subject, "run", run_out)
    file = tmp_path / "profile.json"
    done = run(main, "profile", "--model", config, "-o", file, *FAST)
    assert done.code == 0, done.stderr
    assert "192 tokens on 1 GPU: fit with 2 of 3 layers checkpointed" in done.stderr
    rows = {(row.length, row.checkpoint_layers): row for row in read_profile(file).iterations}
    assert rows[192, 0].out_of_memory
    assert rows[192, 0].memory_bytes is rows[192, 0].seconds is None
    assert rows[192, 2].seconds > 0
    assert "out of memory" in done.stdout

    monkeypatch.setattr(subject.Subject, "run", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        run(main, "profile", "--model", config, "-o", file, *FAST)


def test_a_length_that_cannot_be_shared_is_said(config, tmp_path):
    from packer_cli.config.profile_options import ProfileConfig
    from packer_cli.loader.parallel import SPGroups
    from packer_cli.measure.run import _Run

    said = []
    groups = SPGroups(rank=0, world_size=2, groups={})
    run_of = _Run(ProfileConfig(model="m", lengths=(5,)), None, None, groups, limit=1, num_layers=1, say=said.append)
    assert run_of.timings(5, 2) == []
    assert said == ["rows of 5 tokens cannot be split over 2 GPUs: skipped"]


def test_rows_that_do_not_fit_are_written_and_fail(config, tmp_path):
    file = tmp_path / "profile.json"
    done = run(main, "profile", "--model", config, "-o", file, *FAST, "--memory", 2**16)
    reason = (
        "the profile has no iteration that ran: measure shorter lengths with hbpack profile, or give it more --memory"
    )
    assert done.code == 1
    assert done.stdout.endswith(f"wrote {file}\n")
    assert done.stderr.endswith(f"\nerror: nothing was fitted to '{file}', so no command can use it yet: {reason}\n")
    assert done.stderr.count(reason) == 1
    profile = read_profile(file)
    assert profile.cost is None
    assert [row.out_of_memory for row in profile.iterations] == [True, True]
    np.save(tmp_path / "lengths.npy", np.array([20, 60]))
    for algorithm in ("search", "hbp"):
        refused = run(main, "groups", tmp_path / "lengths.npy", "--profile", file, "--gpus", 1,
                      "--group-algorithm", algorithm)  # fmt: skip
        assert refused.code == 2


@pytest.mark.slow
def test_rows_of_one_length_are_written_and_fail(config, tmp_path, monkeypatch):
    """They are too few to fit, and HBP's algorithm takes them as they are."""
    from packer_cli.measure import subject

    run_row = subject.Subject.run

    def run_out(self, samples, checkpoint_layers, group=None):
        if sum(samples) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run_row(self, samples, checkpoint_layers, group)

    monkeypatch.setattr(subject.Subject, "run", run_out)
    file = tmp_path / "profile.json"
    done = run(main, "profile", "--model", config, "-o", file, *FAST)
    assert done.code == 1
    assert done.stderr.endswith(
        f"\nerror: nothing was fitted to '{file}', so only --group-algorithm hbp can use it: the profile has peak "
        "memory at fewer than two numbers of tokens a GPU: measure two lengths at least that fit\n"
    )
    np.save(tmp_path / "lengths.npy", np.array([20, 60]))
    groups = ("groups", tmp_path / "lengths.npy", "--profile", file, "--gpus", 1)
    assert run(main, *groups).code == 2
    taken = run(main, *groups, "--group-algorithm", "hbp")
    assert taken.code == 0, taken.stderr


@pytest.mark.slow
def test_rows_without_one_of_a_single_sample_are_fitted(config, tmp_path):
    """Peaks are of the fewest samples that were asked for; a row that cannot hold them all says so."""
    file = tmp_path / "profile.json"
    fast = ("--lengths", "64,192", "--repeats", 1, "--device", "cpu")
    done = run(main, "profile", "--model", config, "-o", file, *fast, "--samples", "100,2")
    assert done.code == 0, done.stderr
    assert done.stderr.count("rows of 64 tokens cannot hold 100 samples: skipped\n") == 1
    assert "192 tokens cannot hold" not in done.stderr
    profile = read_profile(file)
    assert profile.memory.mean_error < 0.05
    two = {64: 2 * 32**2, 192: 2 * 96**2}
    for row in profile.iterations:
        assert row.seconds > 0
        assert (row.memory_bytes is not None) == (row.work == two[row.length])
    assert len(profile.iterations) == 2 + 4


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["sharded", pytest.param("whole", marks=pytest.mark.slow)])
def test_two_processes_measure_real_all_to_alls(config, tmp_path, weights):
    """Under torchrun: FSDP may share the weights, Ulysses the rows; only one process writes and speaks."""
    file = tmp_path / "profile.json"
    run_command(
        "profile", "--model", config, "-o", file, *FAST, "--modelling", "plain", "--weights", weights, num_ranks=2
    )
    profile = read_profile(file)
    assert (profile.num_gpus, profile.num_measured) == (2, None)
    rows = {(row.length, row.sp_size, row.checkpoint_layers): row for row in profile.iterations if row.memory_bytes}
    assert sorted({row.sp_size for row in profile.iterations}) == [1, 2]
    for (length, degree, _), row in rows.items():
        assert row.tokens == length * 2 // degree
    # Two processes hold half of the row each.
    growth = [rows[192, degree, 0].memory_bytes - rows[64, degree, 0].memory_bytes for degree in (1, 2)]
    assert growth[1] == pytest.approx(growth[0] / 2, rel=0.2)
    model = measured_model(profile)
    assert model.sp_sizes == (1, 2)
    assert profile.cost.coefficients["send.2"] >= 0
    parameters = 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32 + 2 * 100 * 32
    held = 8 * parameters / (2 if weights == "sharded" else 1)  # In float32, with gradients, of 16 bytes each.
    assert profile.assumed["constant_bytes_added"] == pytest.approx(held, rel=0.02)
    assert profile.assumed["weights"] == weights
