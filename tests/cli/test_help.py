"""Help: complete, true, and at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import pytest

from packer_cli.cli.main import COMMANDS, cli
from packer_cli.panels import Panel
from packer_cli.version import __version__

HEAVY = ("numba", "numpy", "pyarrow", "pydantic", "rich", "tokenizers", "torch", "transformers", "yaml")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_list_of_commands_says_what_their_help_says(name):
    command = cli.get_command(None, name)
    assert command.name == name
    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_explains_itself(hbpack, name):
    done = hbpack(name, "--help")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: hbpack {name} ")
    assert hbpack(name, "-h").stdout == done.stdout
    full = hbpack(name, "--help-all") if "--help-all" in done.stdout else done
    assert (full.code, full.stderr) == (0, "")
    for parameter in cli.get_command(None, name).params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert len(parameter.help) <= 200, parameter.name
            assert parameter.opts[0] in full.stdout
            words = re.findall(r"\w+", getattr(parameter, "story", ""))
            assert " ".join(words) in " ".join(re.findall(r"\w+", full.stdout)), parameter.name


def test_the_help_of_pack_fits_a_screen(monkeypatch, hbpack):
    monkeypatch.setenv("COLUMNS", "80")
    text = hbpack("pack", "--help").stdout
    assert len(text.splitlines()) <= 62
    for word in ("--output", "--tokenizer", "--groups", "--gpus", "--strategy", "--workers", "--help-all", "Examples"):
        assert word in text
    assert "--step-mix" not in text


def test_only_commands_with_many_options_leave_some_out(hbpack):
    short = [name for name in COMMANDS if "--help-all" in hbpack(name, "--help").stdout]
    assert short == ["pack", "tokenize", "plan", "groups", "compare", "simulate", "stats", "report"]
    assert hbpack("verify", "--help-all").code == 2


@pytest.mark.parametrize("name", ["pack", "compare", "simulate"])
def test_long_help_has_panels(hbpack, name):
    lines = hbpack(name, "--help-all").stdout.splitlines()
    titles = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    panels = [panel.value for panel in Panel]
    assert titles[:4] == panels[:4]
    assert [title for title in panels if title in titles] == titles[:-1]
    first = lines[lines.index("Options:") : lines.index("Reading and tokenizing:")]
    assert {line.split()[0] for line in first if line.startswith("  -")} >= {"--tokenizer", "--groups", "--gpus"}


def test_what_must_be_given_says_so(hbpack):
    def required(name):
        text = " ".join(hbpack(name, "--help").stdout.split())
        return set(re.findall(r"(--[a-z]+) [A-Z][A-Za-z|]*  ?(?:(?!--[a-z]+ [A-Z][A-Za-z|]* ).)*?\[required\]", text))

    assert required("pack") == {"--output", "--tokenizer", "--groups", "--gpus"}
    assert required("stats") == set()
    assert required("compare") == {"--groups", "--gpus"}


@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_the_terminal(monkeypatch, hbpack, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in COMMANDS:
        lines = [line for word in ("--help", "--help-all") for line in hbpack(name, word).stdout.splitlines()]
        assert max(map(len, lines)) <= columns, name
    assert max(map(len, hbpack("--help").stdout.splitlines())) <= columns


def test_the_version(hbpack):
    assert hbpack("--version") == (0, f"hbpack, version {__version__}\n", "")
    done = subprocess.run([sys.executable, "-m", "packer_cli", "--version"], capture_output=True, text=True)
    assert done.stdout == f"hbpack, version {__version__}\n"


def test_help_is_at_once():
    command = [sys.executable, "-m", "packer_cli", "--help"]
    seconds = []
    for _ in range(5):
        begin = os.times()
        subprocess.run(command, check=True, capture_output=True)
        end = os.times()
        # Of the processor: what else runs on the machine does not count.
        seconds.append(end.children_user + end.children_system - begin.children_user - begin.children_system)
    assert min(seconds) < 0.25


def loaded(*words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which ends with a line: what it has loaded of `HEAVY`."""
    code = (
        "import sys\n"
        "from packer_cli.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)


def test_help_loads_nothing_heavy():
    done = loaded("--help")
    assert done.stdout.startswith("Usage: ")
    assert done.stdout.splitlines()[-1] == "[]"


def test_tokenizing_and_writing_load_no_kernels(hbpack, repo, tmp_path):
    """They are loaded where plans are made; the tokenizer is loaded by the workers."""
    sample = repo / "examples" / "sample"
    words = ["tokenize", sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--workers", 2, "-o", tmp_path]
    for command in (words, ["write", tmp_path]):
        done = loaded(*map(str, command))
        assert " holds " in done.stdout
        assert done.stdout.splitlines()[-1] == "['numpy', 'pyarrow', 'pydantic']"
        assert hbpack("plan", tmp_path, "--groups", "4k", "--gpus", 2).code == 0
