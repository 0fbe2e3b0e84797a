"""A set whose packing was removed since: it is read as ever, and not planned again."""

from __future__ import annotations

import html

import pytest

from packer_cli.cli.main import main
from packer_cli.loader import PackedDataset
from packer_cli.plan.packing import REGISTRY, base
from tests.cli_runner import run

WHY = "packing 'next-fit' was removed; use 'bfs', which fills rows"


@pytest.fixture
def old(chats, pack, tmp_path, monkeypatch):
    """A set of a packing that is removed once it is packed."""
    out = tmp_path / "old"
    pack(out, chats, "--packing", "next-fit")
    own = {name: algorithm for name, algorithm in REGISTRY.items() if name != "next-fit"}
    monkeypatch.setattr(REGISTRY, "_own", own)
    monkeypatch.setitem(base.REMOVED, "next-fit", ("bfs", "which fills rows"))
    return out


def test_it_is_read_as_ever(old, sample, tmp_path):
    model = ("--model", sample / "model", "--gpu", "h100")
    page = tmp_path / "page.html"
    for words in (
        ("verify", old),
        ("show", old),
        ("stats", old),
        ("simulate", old, *model),
        ("report", old, "--strategies", "balanced,naive", "--output", page),
        ("export", old, "--to", "parquet", "--output", tmp_path / "export"),
        ("compare", old, "--groups", "1k:1", "--gpus", 4, "--algorithms", "bfs,bfd"),
        ("write", old),
        ("rebalance", old, "--gpus", 4),
    ):
        done = run(main, *words)
        assert done.code == 0, (words, done.stderr)
    assert f"Other plans cannot be made as this one was: {WHY}." in html.unescape(page.read_text())
    assert len(PackedDataset(old, 0, 4)) > 0


def test_it_is_not_planned_again(old, chats):
    done = run(main, "append", old, chats)
    assert (done.code, done.stderr) == (2, f"error: {WHY}; run hbpack pack with all inputs and that packing\n")
    done = run(main, "plan", old, "--groups", "1k:1", "--gpus", 4, "--packing", "next-fit")
    assert (done.code, done.stderr) == (2, f"error: --packing: {WHY}\n")
    done = run(main, "compare", old, "--groups", "1k:1", "--gpus", 4, "--algorithms", "next-fit/none")
    assert (done.code, done.stderr) == (2, f"error: --algorithms: row 'next-fit/none': {WHY}\n")
