"""Every command that makes a set, run once undisturbed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .commands import Commands
from .stages import Stage, Stages


@pytest.fixture(scope="session")
def commands(repo, tmp_path_factory) -> Iterator[Commands]:
    commands = Commands(repo, tmp_path_factory.mktemp("log"))
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def stages(commands, repo, tmp_path_factory) -> list[Stage]:
    return Stages(commands, repo / "examples" / "sample", tmp_path_factory.mktemp("undisturbed")).stages
