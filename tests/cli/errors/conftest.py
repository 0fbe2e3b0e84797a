"""What the tests of errors share."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FORMS = (
    "a tokenizer is a folder with tokenizer.json, a tokenizer.json, a SentencePiece .model, "
    "a vocab.json beside its merges.txt, or a Hugging Face name"
)


def assert_refused(done, message, output):
    assert (done.code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert not output.exists()


@pytest.fixture
def pack_as_user(sample) -> Callable[[Path, Path], str]:
    """`hbpack pack INPUT --output OUT` as a process that file permissions bind, as they do not bind root: stderr."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and sys.platform != "linux":
        pytest.skip("root may read and write everything")

    def drop() -> None:
        libc = ctypes.CDLL(None)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP

    def call(path: Path, output: Path) -> str:
        words = ["pack", path, "--tokenizer", sample / "tokenizer", "--workers", "1", "--output", output]
        command = [sys.executable, "-m", "packer_cli", *words, "--groups", "1k", "--gpus", "1"]
        done = subprocess.run(command, preexec_fn=drop if is_root else None, capture_output=True, text=True)
        assert done.returncode == 2
        assert not output.exists()
        return done.stderr

    return call
