"""A tiny model."""

from __future__ import annotations

import json

import pytest

from tests.measure.tiny import TINY


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path / "config.json"
