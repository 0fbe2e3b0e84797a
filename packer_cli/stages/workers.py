"""The engine of the stages: its workers come from a server that has loaded what tokenizing needs."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.engine.base import Engine
from packer_cli.engine.local import LocalEngine, default_workers
from packer_cli.engine.processes import process_context
from packer_cli.errors import ConfigError
from packer_cli.kernels import choose_cache
from packer_cli.tokens.ahead import settings_for

PRELOAD = ("packer_cli.tokens.preload",)


def start_server(tokenizer: str, chat_template: str | None) -> None:
    """Start what the workers of `make_engine()` are forked from, ahead of it.

    Args:
        tokenizer: what they will use; the server loads it once, for all of them.
        chat_template: instead of the tokenizer's own.

    Raises:
        RunError: it cannot be started.
    """
    choose_cache()  # The server inherits it.
    if default_workers() > 1:
        process_context(PRELOAD, settings_for(tokenizer, chat_template))


def make_engine(
    workers: int | None = None,
    name: str = "local",
    preload: Sequence[str] = PRELOAD,
    tokenizer: str | None = None,
    chat_template: str | None = None,
) -> Engine:
    """An engine for all stages. Enter it before the imports of the stages: its workers load at the same time.

    Args:
        name: `local`, `ray` or `ray:ADDRESS`.
        preload: modules that workers import before they start.
        tokenizer, chat_template: see `start_server`.

    Raises:
        ConfigError: there is no such engine.
    """
    choose_cache()  # Workers inherit it.
    kind, colon, address = name.partition(":")
    if kind == "ray" and bool(colon) == bool(address):
        from packer_cli.engine.ray import RayEngine

        return RayEngine(address or None, workers, preload)
    if name != "local":
        raise ConfigError(f"--engine: unknown engine {name!r}; choose local, ray or ray:ADDRESS")
    settings = None if tokenizer is None else settings_for(tokenizer, chat_template)
    return LocalEngine(workers or default_workers(), preload, settings=settings)
