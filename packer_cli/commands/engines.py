"""The processes that commands run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packer_cli.config import validate
from packer_cli.config.models import EngineConfig
from packer_cli.engine.local import Engine, LocalEngine, default_workers
from packer_cli.errors import ConfigError
from packer_cli.kernels import choose_cache
from packer_cli.tokens.ahead import NamedTokenizer, settings_for

PRELOAD = ("packer_cli.tokens.preload",)


def make_engine(
    options: Mapping[str, object], preload: Sequence[str] = PRELOAD, tokenizer: NamedTokenizer | None = None
) -> Engine:
    """Make an engine for all stages. Enter the engine before the imports of the stages: its workers load meanwhile.

    Args:
        options: those of `EngineConfig`, maybe among others.
        preload: modules that workers import before they start.
        tokenizer: see `start_server`.

    Raises:
        ConfigError: there is no such engine, or no such number of workers.
    """
    chosen = validate(EngineConfig, options)
    choose_cache()  # Workers inherit it.
    kind, colon, address = chosen.engine.partition(":")
    if kind == "ray" and bool(colon) == bool(address):
        from packer_cli.engine.ray import RayEngine

        return RayEngine(address or None, chosen.workers, preload)
    if chosen.engine != "local":
        raise ConfigError(f"--engine: unknown engine {chosen.engine!r}; choose local, ray or ray:ADDRESS")
    settings = None if tokenizer is None else settings_for(tokenizer)
    return LocalEngine(chosen.workers or default_workers(), preload, settings=settings)
