"""Shell completion: commands, options, the values of registries, files; and at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from packer_cli.cli.main import COMMANDS, cli
from packer_cli.cost.analytic import PRESETS
from packer_cli.export.formats import FORMATS
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.strategies.registry import PACKED
from packer_cli.tables.compare import COLUMNS
from tests.cli_runner import HBPACK


def completed(*words):
    *before, incomplete = words
    return ShellComplete(cli, {}, "hbpack", "_HBPACK_COMPLETE").get_completions(before, incomplete)


def values(*words):
    return [item.value for item in completed(*words)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("",), list(COMMANDS)),
        (("pack", "--packing", ""), list(REGISTRY)),
        (("pack", "--gpu", ""), list(PRESETS)),
        (("pack", "--strategy", ""), list(PACKED)),
        (("pack", "--groups", ""), ["auto"]),
        (("pack", "--cost", ""), ["quadratic", "profile"]),
        (("pack", "--cp-sharding", "d"), ["document"]),
        (("pack", "--engine", "r"), ["ray"]),
        (("export", "--to", ""), list(FORMATS)),
        (("compare", "--sort", ""), [column.name for column in COLUMNS]),
        (("compare", "--strategies", "naive,h"), ["naive,hbp", "naive,hydraulis"]),
        (("rebalance", "--sta"), ["--state"]),
    ],
)
def test_values(words, expected):
    assert values(*words) == expected


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("pack", "ch"), "file"),
        (("pack", "--tokenizer", ""), "file"),
        (("pack", "--config", ""), "file"),
        (("pack", "--output", ""), "dir"),
        (("show", ""), "dir"),
        (("simulate", "--profile", ""), "file"),
    ],
)
def test_files(words, kind):
    assert [item.type for item in completed(*words)] == [kind]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(repo, shell):
    done = subprocess.run(
        HBPACK, env={**os.environ, "_HBPACK_COMPLETE": f"{shell}_source"}, capture_output=True, text=True
    )
    assert f"_HBPACK_COMPLETE={shell}_complete" in done.stdout
    assert f"_HBPACK_COMPLETE={shell}_source hbpack" in (repo / "docs" / "cli.md").read_text(encoding="utf-8")


def test_it_loads_nothing_slow():
    code = (
        "import sys\n"
        "from packer_cli.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numba', 'pyarrow', 'torch', 'transformers', 'rich'} & set(sys.modules)))\n"
    )
    words = {"COMP_WORDS": "hbpack pack --gl", "COMP_CWORD": "2", "_HBPACK_COMPLETE": "bash_complete"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **words}, capture_output=True, text=True)
    assert done.stdout == "plain,--global-tokens\n[]\n"
