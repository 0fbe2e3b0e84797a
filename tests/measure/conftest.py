"""A tiny model, in one thread."""

from __future__ import annotations

import json

import pytest

from tests.measure.tiny import TINY


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path / "config.json"


@pytest.fixture
def one_thread():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
