"""What of torchtitan meets its data loader, for where it is not installed; after pytorch/torchtitan b5bcd76.

`torchtitan/config/configurable.py` (Configurable), `torchtitan/components/data/loader.py` (BaseDataLoader).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.stateful import Stateful


class Configurable:
    """A class that its nested Config builds."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[type | None] = None

        def build(self, **kwargs: Any) -> Any:
            overlap = {field.name for field in fields(self)} & kwargs.keys()
            if overlap:
                raise ValueError(f"build() kwargs {overlap} overlap with config fields.")
            assert self._owner is not None
            return self._owner(config=replace(self), **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        config = cls.__dict__.get("Config")
        if config is not None:
            if "__slots__" not in config.__dict__ or not all(f.kw_only for f in fields(config) if f.init):
                raise TypeError(f"{cls.__name__}.Config must use @dataclass(kw_only=True, slots=True)")
            config._owner = cls


class BaseDataLoader(Stateful, ABC, Configurable):
    """`state_dict`, `load_state_dict`, and batches."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]: ...

    def close(self) -> None:
        pass


@contextmanager
def installed() -> Iterator[None]:
    """Make it what `import torchtitan` finds."""
    names = ["torchtitan", "torchtitan.components", "torchtitan.components.data", "torchtitan.components.data.loader"]
    modules = [ModuleType(name) for name in names]
    modules[-1].BaseDataLoader = BaseDataLoader  # type: ignore[attr-defined]
    sys.modules |= dict(zip(names, modules, strict=True))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
