"""What users import: there, typed, and with the options of the commands."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import packer_cli as hbpack
from packer_cli.cli.main import COMMANDS, cli

OF_THE_COMMAND_LINE = {"as_json", "columns", "config", "help", "help_all", "lists", "log_format", "wait"}
"""Options that print, or read a file of options or a list of inputs."""
SUBJECTS = {"folder", "inputs", "lengths", "path", "plan", "records", "store", "version"}
"""What a command works on; the first arguments of its function, without a default on the command line."""
IN_WORDS = {"shard_size", "max_record_bytes"}
"""Options whose defaults the command line shows with a unit."""
OTHER_DEFAULTS = {"group_algorithm", "output", "packing"}
"""Options that in Python follow others, or of what only a command writes by default."""
NOT_IN_PYTHON = {"profile", "show"}
"""Commands without a function."""


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NOT_IN_PYTHON])
def test_a_function_has_the_options_of_its_command(name):
    subject, *others = inspect.signature(getattr(hbpack, name)).parameters.values()
    parameters = [each for each in (subject, *others) if each.name not in SUBJECTS]
    command = cli.get_command(None, name)
    named = {"record_schema": "schema"}
    options = {named.get(each.name, each.name): each for each in command.params if each.name not in SUBJECTS}
    assert subject.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {each.name for each in parameters} == set(options) - OF_THE_COMMAND_LINE
    for parameter in parameters:
        shown = options[parameter.name].default
        if isinstance(shown, (str, int)) and parameter.name not in IN_WORDS | OTHER_DEFAULTS:
            assert str(parameter.default) == str(shown), parameter.name


def test_the_names_are_there_and_in_the_list():
    assert [name for name in dir(hbpack) if name[0] != "_"] == [name for name in hbpack.__all__ if name[0] != "_"]
    for name in hbpack.__all__:
        assert getattr(hbpack, name) is not None
    with pytest.raises(AttributeError, match="module 'packer_cli' has no attribute 'plam'"):
        hbpack.plam  # noqa: B018


def test_a_subpackage_of_the_same_name_hides_no_function():
    """In a process of its own, which has loaded neither."""
    code = """
import packer_cli.plan.core.types
import packer_cli as hbpack
from packer_cli import plan
from packer_cli.plan.core.groups import Group
import packer_cli.compare.rows, packer_cli.simulate.epoch
assert plan is hbpack.plan and plan.__module__ == "packer_cli.commands.planned", plan
assert callable(hbpack.compare) and callable(hbpack.simulate)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert isinstance(importlib.import_module("packer_cli.plan"), ModuleType)


def test_what_is_not_installed_names_the_remedy(monkeypatch):
    """As with hbpack-loader, which has no preparation side."""
    monkeypatch.setitem(hbpack.__homes__, "prepare", "packer_cli.nowhere")
    with pytest.raises(AttributeError, match=r"hbpack-loader has no prepare\(\), but hbpack has: pip install hbpack"):
        hbpack.prepare  # noqa: B018
