"""What users can call or give is in the docs."""

from __future__ import annotations

import re
import tomllib

import click
import pytest

import packer_cli
from packer_cli.cli.main import COMMANDS, cli
from tests.docs.blocks import ROOT, pages


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_every_option_of_a_command(name):
    parts = re.split("^## ", page("cli.md"), flags=re.MULTILINE)
    (part,) = [part for part in parts if part.startswith(f"hbpack {name}\n")]
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", part))
    for parameter in cli.get_command(None, name).params:
        if parameter.name == "help_all":
            continue
        if isinstance(parameter, click.Option):
            assert set(parameter.opts) <= words, parameter.name
        else:
            assert str(parameter.metavar) in part


def test_the_full_text_of_an_option_stands_in_the_reference_once():
    text = " ".join(page("cli.md").split())
    commands = [cli.get_command(None, name) for name in COMMANDS]
    stories = {" ".join(option.story.split()) for command in commands for option in command.options} - {""}
    assert len(stories) > 30
    assert {story: text.count(story) for story in stories} == dict.fromkeys(stories, 1)


@pytest.mark.parametrize("name", ["cli.md", "api.md"])
def test_links_to_options_lead_to_them(name):
    linked = set(re.findall(r"(?:\(|cli\.md)#(option-[a-z-]+)\)", page(name)))
    anchors = re.findall(r'<a id="(option-[a-z-]+)">', page("cli.md"))
    assert len(anchors) == len(set(anchors)) > 40
    assert linked
    assert linked <= set(anchors)


def test_every_command_has_a_guide():
    """A page that a person wrote names it in a block or in the text, not only in the reference."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "cli.md"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    assert [name for name in COMMANDS if not re.search(rf"hbpack {name}\b", text)] == []


def test_the_distributions_have_the_extras_that_pages_install():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"hbpack": set(project["optional-dependencies"]), "hbpack-loader": {"remote"}}
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in pages())
    named = re.findall(r"(hbpack(?:-loader)?)\[([a-z,]+)\]", text)
    assert named
    assert [(name, words) for name, words in named if not set(words.split(",")) <= extras[name]] == []


def test_the_reference_has_everything_that_is_public():
    titles = re.findall(r"^### (\w+)", page("api.md"), flags=re.MULTILINE)
    functions = {name for name in packer_cli.__all__ if not name.startswith("__")} - {"HbpackError", "testing"}
    assert functions | {"check_packing", "check_strategy"} <= set(titles)


def test_the_loaders_reference_has_everything_that_training_imports():
    pytest.importorskip("torch")
    from packer_cli.loader import PackedDataset, losses, parallel

    text = page("loader-api.md")
    titles = set(re.findall(r"^### (\w+)", text, flags=re.MULTILINE))
    of_losses = {name for name, value in vars(losses).items() if getattr(value, "__module__", "") == losses.__name__}
    assert {"PackedDataset", "check_separation", "LayerCheckpointing", *parallel.__all__} <= titles
    assert {name for name in of_losses if name[0] != "_"} <= titles
    for name in (name for name in vars(PackedDataset) if name[0] != "_"):
        assert re.search(rf"^- `{name}\b", text, flags=re.MULTILINE), name
