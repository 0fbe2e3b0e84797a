"""What `hbpack profile` refuses, and what goes wrong at its end."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from packer_cli.cli.main import main
from packer_cli.config.gpu_model import read_profile
from packer_cli.errors import ConfigError
from tests.cli_runner import run
from tests.measure.tiny import FAST, TINY, profile_of

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "5x"), "--lengths: '5x' is not a number of tokens; write for example 16384, 16k or 1m"),
        (("--lengths", "0"), "--lengths: numbers must be at least 1, got 0"),
        (
            ("--lengths", "64,64"),
            "--lengths: one length does not tell how memory grows; add another, such as its double",
        ),
        (
            ("--lengths", "256,128", "--samples", "1000,129"),
            (
                "--samples: a row of 128 tokens (--lengths) cannot hold 129 samples; give fewer samples, or longer "
                "lengths"
            ),
        ),
        (("--samples", "1,b"), "--samples: 'b' is not an integer; write it in digits, for example 8"),
        (
            ("--bandwidth", "1,2,3"),
            "--bandwidth: write the one within a node, then the one between nodes, such as 400GB,50GB",
        ),
        (
            ("--memory", "1GB,2GB"),
            "--memory: '1GB,2GB' is not a number of bytes; write for example 1048576, 256MiB or 1GB",
        ),
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


BART = {
    "model_type": "bart", "d_model": 32, "num_hidden_layers": 3, "encoder_layers": 3, "decoder_layers": 2,
    "num_attention_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "ffn_dim": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 100, "dtype": "float32",
}  # fmt: skip
"""A model for causal LM is its decoder, whose layers the usual key does not count."""


def test_a_model_that_cannot_be_measured(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**TINY, "num_local_experts": 4, "num_experts_per_tok": 2}))
    done = run(main, "profile", "--model", file, "-o", tmp_path / "p.json", *FAST, "--modelling", "plain")
    assert done.stderr == (
        "error: --modelling plain has no experts: measure this model with --modelling transformers\n"
    )
    file.write_text(json.dumps({**TINY, "hidden_size": 36}))
    done = run(main, "profile", "--model", file, "-o", tmp_path / "p.json", *FAST, "--modelling", "plain")
    assert done.stderr == (
        "error: --modelling plain needs heads of an even size, got 9: measure this model with --modelling "
        "transformers\n"
    )
    file.write_text(json.dumps(BART))
    done = run(main, "profile", "--model", file, "-o", tmp_path / "p.json", *FAST)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: --model {str(file)!r}: the config has 3 layers, but the model has 2; give another config, or "
        "--modelling plain\n"
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


def test_a_kernel_that_is_not_there(monkeypatch):
    from packer_cli.measure.kernels import choose_kernel, sdpa

    old = ModuleType("varlen")
    old.varlen_attn = lambda query, key, value: None
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", old)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    for name, why in (
        ("torch-varlen", "torch.nn.attention.varlen of this torch is too old: 2.11 or newer is needed"),
        ("flash-attn", "import of flash_attn halted; None in sys.modules"),
    ):
        with pytest.raises(ConfigError) as error:
            choose_kernel(name, torch.device("cuda"))
        assert str(error.value) == f"--attention {name}: {why}; install it, or give --attention auto"
    assert choose_kernel("auto", torch.device("cuda")) == ("sdpa", sdpa)


def test_what_several_processes_cannot_measure():
    """As under torchrun with four."""
    from packer_cli.config.profile_options import ProfileConfig
    from packer_cli.measure.run import _check

    shape = SimpleNamespace(sp_sizes=lambda world_size: (1, 2, 4), num_layers=3)
    for degree, gpus, message in (
        (2, 6, "--gpus must be a multiple of the 4 GPUs that measure, got 6; give 8"),
        (
            3,
            8,
            (
                "--sp: degree 3 cannot be measured: 4 process(es) and the model's heads allow 1, 2, 4; choose one of "
                "them, or give --bandwidth"
            ),
        ),
    ):
        options = ProfileConfig(model="config.json", lengths=(64, 128), sp=(1, degree), gpus=gpus)
        with pytest.raises(ConfigError) as error:
            _check(options, shape, world_size=4)
        assert str(error.value) == message


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
    assert done.stderr == "error: this needs torch: pip install 'hbpack[torch]'\n"


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
