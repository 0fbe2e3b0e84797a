"""The engine of the stages: its workers come from a server that has imported what tokenizing needs."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.engine.base import Engine
from packer_cli.engine.local import LocalEngine, default_workers
from packer_cli.engine.processes import process_context
from packer_cli.errors import ConfigError

PRELOAD = ("packer_cli.tokens.preload",)


def start_server() -> None:
    """Start what the workers of `make_engine()` are forked from, ahead of it.

    Raises:
        RunError: it cannot be started.
    """
    if default_workers() > 1:
        process_context(PRELOAD)


def make_engine(workers: int | None = None, name: str = "local", preload: Sequence[str] = PRELOAD) -> Engine:
    """An engine for all stages. Enter it before the imports of the stages: its workers load at the same time.

    Args:
        name: `local`, `ray` or `ray:ADDRESS`.
        preload: modules that workers import before they start.

    Raises:
        ConfigError: there is no such engine.
    """
    kind, colon, address = name.partition(":")
    if kind == "ray" and bool(colon) == bool(address):
        from packer_cli.engine.ray import RayEngine

        return RayEngine(address or None, workers, preload)
    if name != "local":
        raise ConfigError(f"--engine: unknown engine {name!r}; choose local, ray or ray:ADDRESS")
    return LocalEngine(workers or default_workers(), preload)
