"""Workers are forked with the run's tokenizer; a tokenizer that cannot be loaded ahead is left to them."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from packer_cli.cli.main import _value_of
from packer_cli.commands.engines import PRELOAD
from packer_cli.engine.local import LocalEngine
from packer_cli.errors import TokenizerError
from packer_cli.tokens import part
from packer_cli.tokens.ahead import NamedTokenizer, settings_for
from packer_cli.tokens.part import load_ahead, tokenizer_key


def _loaded(_: object) -> dict[tuple[str, str], set[str]]:
    """By tokenizer, what a worker has without a task."""
    return {key: set(vars(backends)) for key, backends in part._loaded.items()}


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
def test_workers_have_the_tokenizer_before_their_first_task(repo, template):
    name = str(repo / "examples" / "sample" / "tokenizer")
    with LocalEngine(2, PRELOAD, settings=settings_for(NamedTokenizer(name, template))) as engine:
        outcomes = dict(engine.run(_loaded, [1, 2]))
    ready = {"tokenizer", "reference", "gigatoken", "lengths"}
    assert outcomes == {worker: {(name, tokenizer_key(NamedTokenizer(name, template))): ready} for worker in range(2)}


def test_what_cannot_be_loaded_is_left_to_the_task(repo, tmp_path, monkeypatch):
    monkeypatch.setattr(part, "_loaded", {})
    folder = tmp_path / "tokenizer"
    shutil.copytree(repo / "examples" / "sample" / "tokenizer", folder)
    (folder / "tokenizer.json").write_text("{")
    load_ahead(NamedTokenizer(str(folder)))
    load_ahead(NamedTokenizer("no/such-name-on-the-hub"))
    assert part._loaded == {}
    with pytest.raises(TokenizerError, match="is not readable JSON"):
        part._load(NamedTokenizer(str(folder)), "key")


def test_a_tokenizer_that_has_changed_is_loaded_again(repo, tmp_path, monkeypatch):
    monkeypatch.setattr(part, "_loaded", {})
    folder = tmp_path / "tokenizer"
    shutil.copytree(repo / "examples" / "sample" / "tokenizer", folder)
    load_ahead(NamedTokenizer(str(folder)))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    key = tokenizer_key(NamedTokenizer(str(folder)))
    assert [name for name, of_key in part._loaded if of_key == key] == []
    assert part._load(NamedTokenizer(str(folder)), key).tokenizer.chat_template == "{{ messages }}"


def test_the_value_of_an_option_is_found_on_the_command_line():
    value = partial(_value_of, "--tokenizer")
    assert value(["pack", "a", "--tokenizer", "T", "--tokenizer-backend", "auto"]) == "T"
    assert value(["pack", "--tokenizer=T", "--tokenizer=U"]) == "U"
    assert value(["pack", "a", "--tokenizer"]) is None
    assert value(["pack"]) is None
