"""`hbpack profile` on a CPU: a tiny model, in this process and under torchrun."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from packer_cli.cli.main import main
from packer_cli.config.gpu_model import read_profile
from packer_cli.cost.measured import measured_model
from packer_cli.cost.profile import Profile
from packer_cli.errors import InputError
from tests.cli_runner import run

torch = pytest.importorskip("torch")

TINY = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
    "dtype": "float32",
}  # fmt: skip
FAST = ("--lengths", "64,192", "--samples", "1,4", "--repeats", 1, "--device", "cpu")


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path / "config.json"


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("modelling", ["transformers", "plain"])
def test_a_profile_is_measured_fitted_and_read(config, tmp_path, repo, modelling):
    file = tmp_path / "profile.json"
    done = run(main, "profile", "--model", config, "-o", file, *FAST, "--gpus", 4, "--modelling", modelling,
               "--bandwidth", "10GB,1GB")  # fmt: skip
    assert done.code == 0, done.stderr
    assert "64 tokens on 1 GPU: fit with 0 of 3 layers checkpointed" in done.stderr
    assert done.stdout.startswith("Iterations on 1 x CPU, forward and backward")
    assert "Time, fitted: " in done.stdout
    assert done.stdout.endswith(f"wrote {file}\n")
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


def test_pieces_of_a_sample_compute_its_attention():
    """The last queries of a sample, forward and backward, against the whole sample's."""
    from packer_cli.measure.kernels import Segments, sdpa

    torch.manual_seed(0)
    row = [torch.randn(150, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    device = torch.device("cpu")
    whole = sdpa(*row, Segments.of((100, 50), (100, 50), causal=True, device=device))
    for stop in (1, 7, 100):
        for start in (0, stop // 2, stop - 1):
            samples = Segments.of((stop - start, 50), (stop, 50), causal=True, device=device)
            parts = [torch.cat((x[a:stop], x[100:])) for x, a in zip(row, (start, 0, 0), strict=True)]
            found, wanted = sdpa(*parts, samples), torch.cat((whole[start:stop], whole[100:]))
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
            gradients = [torch.autograd.grad(x.square().sum(), row, retain_graph=True) for x in (found, wanted)]
            torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_a_slow_device_measures_fewer_pieces(monkeypatch):
    from packer_cli.cost.model_config import shape_of
    from packer_cli.measure import attention
    from packer_cli.measure.device import Device
    from packer_cli.measure.kernels import sdpa

    def measured(work_per_second):
        monkeypatch.setattr(attention, "piece_seconds", lambda *args: sum(args[3]) * args[4][0] / work_per_second)
        return [(row.queries, row.keys) for row in attention.measure_attention(*arguments, 10_000, 1)]

    arguments = Device("cpu"), sdpa, shape_of(TINY)
    assert measured(1e12)[-1] == (4096, 10_000)
    assert [piece for piece in measured(2e7) if piece[1] == 10_000] == [(q, 10_000) for q in (1, 16, 64, 128, 256)]


def test_a_profile_of_an_earlier_release_is_read(tmp_path, repo):
    table = json.loads((repo / "tests/groups/data/hbp-table-4.json").read_text())
    table["attention"] = [{"query_length": 16, "key_length": 4096, "seconds": 1e-3}]
    (tmp_path / "profile.json").write_text(json.dumps(table))
    assert read_profile(tmp_path / "profile.json").pieces == ()


def test_pieces_with_fewer_keys_than_queries_are_refused(tmp_path, repo):
    table = json.loads((repo / "tests/groups/data/hbp-table-4.json").read_text())
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({**table, "pieces": [{"queries": 16, "keys": 15, "seconds": 1e-3}]}))
    with pytest.raises(InputError) as error:
        read_profile(file)
    rule = "pieces.0: Value error, a piece has at least as many keys as queries, got 15 and 16"
    assert str(error.value) == f"{str(file)!r} is not a profile: {rule}; make one with hbpack profile"


def test_the_fewest_layers_that_fit_are_found(config, monkeypatch):
    """For limits just at and below the peaks that are counted with each number of layers."""
    from packer_cli.measure import run as measuring
    from packer_cli.measure.run import ProfileOptions, measure_profile

    monkeypatch.setattr(measuring, "measure_attention", lambda *_: [])
    options = {"model": str(config), "modelling": "plain", "lengths": (96,), "device": "cpu", "repeats": 1,
               "warm_up": 0, "samples": (1,)}  # fmt: skip
    all_of_them = measure_profile(ProfileOptions(**options, checkpoint_layers=(0, 1, 2, 3)))
    added = all_of_them.assumed["constant_bytes_added"]
    peaks = [row.memory_bytes for row in all_of_them.iterations]
    assert peaks == sorted(peaks, reverse=True)
    for layers in range(4):
        profile = measure_profile(ProfileOptions(**options, memory=peaks[layers] + added + 1))
        ran = [row.checkpoint_layers for row in profile.iterations if row.seconds]
        assert ran == sorted({layers, 3})
        assert all(row.out_of_memory == (row.checkpoint_layers < layers) for row in profile.iterations)
    nothing = measure_profile(ProfileOptions(**options, memory=peaks[3] + added - 1))
    assert [(row.seconds, row.out_of_memory) for row in nothing.iterations] == [(None, True)]


def test_chunked_logits_are_the_same_loss_in_less_memory(config):
    from packer_cli.cost.model_config import shape_of
    from packer_cli.measure.decoder import PlainDecoder
    from packer_cli.measure.device import LiveBytes
    from packer_cli.measure.kernels import RowAttention, sdpa

    attention = RowAttention(sdpa)
    attention.set((100, 28), None, torch.device("cpu"))
    ids, positions = torch.arange(128) % 100, torch.cat([torch.arange(100), torch.arange(28)])
    found = []
    for chunk in (0, 24):
        torch.manual_seed(0)
        model = PlainDecoder(shape_of({**TINY, "vocab_size": 3000}), attention, chunk).double()
        with LiveBytes() as live:
            loss = model(ids, positions, ids)
            loss.backward()
        found.append((float(loss.detach()), model.embedding.weight.grad, live.peak))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)
    assert found[1][2] < 0.7 * found[0][2]


def test_running_out_of_memory_is_recorded(config, tmp_path, monkeypatch):
    from packer_cli.measure import subject

    run_row = subject.Subject.run

    def run_out(self, length, num_samples, checkpoint_layers, group=None):
        if length > 100 and checkpoint_layers < 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run_row(self, length, num_samples, checkpoint_layers, group)

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
    from packer_cli.loader.parallel import SPGroups
    from packer_cli.measure.run import ProfileOptions, _Run

    said = []
    groups = SPGroups(rank=0, world_size=2, groups={})
    run_of = _Run(ProfileOptions(model="", lengths=(5,)), None, None, groups, limit=1, num_layers=1, say=said.append)
    assert run_of.timings(5, 2) == []
    assert said == ["rows of 5 tokens cannot be split over 2 GPUs: skipped"]


def test_rows_that_do_not_fit_are_written_and_fail(config, tmp_path):
    file = tmp_path / "profile.json"
    done = run(main, "profile", "--model", config, "-o", file, *FAST, "--memory", 1)
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


def test_rows_of_one_length_are_written_and_fail(config, tmp_path, monkeypatch):
    """They are too few to fit, and HBP's algorithm takes them as they are."""
    from packer_cli.measure import subject

    run_row = subject.Subject.run

    def run_out(self, length, num_samples, checkpoint_layers, group=None):
        if length > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run_row(self, length, num_samples, checkpoint_layers, group)

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


def test_a_file_that_cannot_be_written_at_the_end_loses_no_figures(config, tmp_path, monkeypatch):
    from packer_cli.files import HashingFile

    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(HashingFile, "write", full)
    done = run(main, "profile", "--model", config, "-o", tmp_path / "p.json", *FAST)
    assert done.code == 1
    assert done.stdout.startswith("Iterations on 1 x CPU, forward and backward")
    assert "Memory, fitted: " in done.stdout
    assert "wrote" not in done.stdout
    assert done.stderr.endswith(
        f"\nerror: No space left on device ({tmp_path}/p.json); make room and run the same command again to go on\n"
    )


def test_two_processes_measure_real_all_to_alls(config, tmp_path):
    """Under torchrun: FSDP shares the weights, Ulysses the rows; only one process writes and speaks."""
    file = tmp_path / "profile.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "packer_cli", "profile", "--model", str(config), "-o", str(file),
        *map(str, FAST), "--modelling", "plain",
    ]  # fmt: skip
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}  # fmt: skip
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[1][0] == ""
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


def profile_of(path: Path) -> Path:
    minimal = Profile(model={"num_layers": 1, "num_heads": 1}, gpu="x", num_gpus=1, iterations=())
    path.write_text(minimal.model_dump_json())
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "5x"), "--lengths: '5x' is not a number of tokens; write for example 16384, 16k or 1m"),
        (("--lengths", "0"), "--lengths: numbers must be at least 1, got 0"),
        (
            ("--lengths", "64,64"),
            (
                "--lengths takes two lengths at least, got '64,64': one does not tell how memory grows; add another, "
                "such as its double"
            ),
        ),
        (
            ("--lengths", "256,128", "--samples", "1000,129"),
            (
                "--samples: a row of 128 tokens (--lengths) cannot hold 129 samples; give fewer samples, or longer "
                "lengths"
            ),
        ),
        (("--samples", "1,b"), "--samples: 'b' is not an integer; write it in digits, for example 8"),
        (("--bandwidth", "1,2,3"), "--bandwidth takes one or two numbers, got '1,2,3'"),
        (("--memory", "1GB,2GB"), "--memory takes one number, got '1GB,2GB'"),
        (("--memory", "much"), "--memory: 'much' is not a number of bytes; write for example 1048576, 256MiB or 1GB"),
        (
            ("--sp", "2"),
            (
                "--sp: degree 2 cannot be measured: 1 process(es) and the model's heads allow 1; run it under "
                "torchrun with more processes, or give --bandwidth"
            ),
        ),
        (("--attention", "flash-attn"), "--attention flash-attn needs a GPU; on a CPU there is only sdpa"),
        (("--checkpoint-layers", "4"), "--checkpoint-layers: the model has 3 layers, got 4"),
    ],
)
def test_a_wrong_option(config, tmp_path, arguments, message):
    done = run(main, "profile", "--model", config, "-o", tmp_path / "p.json", "--device", "cpu", *arguments)
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert not (tmp_path / "p.json").exists()


def test_a_gpu_that_is_not_there(config, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run(main, "profile", "--model", config, "-o", tmp_path / "p.json", "--device", "cuda")
    assert done == (2, "", "error: --device cuda: torch sees no GPU here; give --device cpu to measure this CPU\n")


def test_an_output_that_is_something_else(config, tmp_path, monkeypatch):
    for output, rule in (
        (config, "already exists and is not a profile; name another file"),
        (tmp_path, "is a folder; name a file, such as profile.json"),
        (tmp_path / "no" / "p.json", "is in a folder that does not exist; name a file, such as profile.json"),
    ):
        done = run(main, "profile", "--model", config, "-o", output, *FAST)
        assert done == (2, "", f"error: --output: {str(output)!r} {rule}\n")
    # A file system that is mounted read-only answers so to root too.
    closed = tmp_path / "closed"
    closed.mkdir()
    may = os.access
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: Path(path) != closed and may(path, mode))
        done = run(main, "profile", "--model", config, "-o", closed / "p.json", *FAST)
    rule = "is in a folder that cannot be written to; name a file in another"
    assert done == (2, "", f"error: --output: '{closed}/p.json' {rule}\n")
    older = profile_of(tmp_path / "old.json")
    assert run(main, "profile", "--model", config, "-o", older, *FAST).code == 0
    assert read_profile(older).iterations


def test_a_model_that_cannot_be_measured(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**TINY, "num_local_experts": 4, "num_experts_per_tok": 2}))
    done = run(main, "profile", "--model", file, "-o", tmp_path / "p.json", *FAST, "--modelling", "plain")
    assert done.stderr == (
        "error: --modelling plain has no experts: measure this model with --modelling transformers\n"
    )
    file.write_text(json.dumps(TINY))
    done = run(main, "profile", "--model", file, "-o", tmp_path / "p.json", *FAST, "--logits", "chunked")
    assert done.stderr == (
        "error: --logits chunked needs --modelling plain: transformers computes all logits at once\n"
    )
    file.write_text(json.dumps({**TINY, "model_type": "mine"}))
    done = run(main, "profile", "--model", file, "-o", tmp_path / "p.json", *FAST)
    assert done.code == 2
    assert done.stderr.startswith(f"error: --model {str(file)!r}: transformers cannot create this model (")
    assert done.stderr.endswith("give another config, or --modelling plain\n")


def test_without_torch(config, tmp_path):
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from packer_cli.cli.main import main\n"
        f"sys.argv = ['hbpack', 'profile', '--model', {str(config)!r}, '-o', {str(tmp_path / 'p.json')!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: this command needs torch: pip install 'hbpack[torch]'\n"
