"""The engine of the stages: its workers come from a server that has imported what tokenizing needs."""

from __future__ import annotations

from packer_cli.engine.local import LocalEngine, default_workers
from packer_cli.engine.processes import process_context

PRELOAD = ("packer_cli.tokens.preload",)


def start_server() -> None:
    """Start what the workers of `make_engine()` are forked from, ahead of it.

    Raises:
        RunError: it cannot be started.
    """
    if default_workers() > 1:
        process_context(PRELOAD)


def make_engine(workers: int | None = None) -> LocalEngine:
    """An engine for all stages. Enter it before the imports of the stages: its workers load at the same time."""
    return LocalEngine(workers or default_workers(), PRELOAD)
