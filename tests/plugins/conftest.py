"""What the tests of plug-ins share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.package import forget, install


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    """Whatever a test brings is forgotten after it."""
    yield
    forget()


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder that is on the path, with the package."""
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder)
    monkeypatch.syspath_prepend(folder)
    known = set(sys.modules)
    yield folder
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]
