"""The examples of every command's help run as printed, one after the other, in a copy of examples/sample."""

from __future__ import annotations

import shlex
import shutil

import pytest

from packer_cli.cli.main import COMMANDS, cli, main
from tests.cli_runner import run

NEED_A_GPU = {"profile"}
"""Their examples measure a model of 8B parameters."""


def examples(name):
    """The words of each example of a command, without comments."""
    text = cli.get_command(None, name).examples.replace("\\\n", "")
    return [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.slow  # About fifty runs.
def test_the_examples_run(sample, tmp_path, monkeypatch):
    folder = tmp_path / "sample"
    shutil.copytree(sample, folder)
    monkeypatch.chdir(folder)
    for name in COMMANDS:
        if name in NEED_A_GPU:
            continue
        assert any(words[:2] == ["hbpack", name] for words in examples(name)), name
        for words in examples(name):
            if "--push-to-hub" in words:
                continue  # The docs have it, too, and their blocks run beside a Hub.
            done = run(main, *words[1:])
            assert done.code == 0, (words, done.stderr)
            assert done.stdout, words


def test_the_examples_fit_a_terminal():
    for name in COMMANDS:
        assert max(map(len, cli.get_command(None, name).examples.splitlines())) <= 78, name
