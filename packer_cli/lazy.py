"""Functions that are imported when they are first used, so that importing what names them costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package with attributes that lie in other modules.

    An attribute may have the name of a subpackage, as `plan` has: it is the function, whether or not the subpackage
    is loaded. `from packer_cli.plan import X` and `import packer_cli.plan` work as usual, since Python keeps loaded
    modules in `sys.modules`.
    """

    def __getattr__(self, name: str) -> Any:
        """Import what is not there yet."""
        homes: Mapping[str, str] = vars(self)["__homes__"]
        if name not in homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(homes[name])
        except ModuleNotFoundError as error:
            if error.name and error.name.split(".")[0] == self.__name__:  # Only some of its files are installed.
                raise AttributeError(f"hbpack-loader has no {name}(), but hbpack has: pip install hbpack") from None
            raise
        is_module = homes[name] == f"{self.__name__}.{name}"
        found = vars(self)[name] = module if is_module else getattr(module, name)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; Python's own one for a subpackage would hide the function."""
        if not (isinstance(value, ModuleType) and name in vars(self)["__homes__"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """List what users import."""
        return [name for name in sorted({*vars(self), *self.__all__}) if name in self.__all__ or name[:2] == "__"]


def provide(package: str, homes: Mapping[str, str]) -> None:
    """Make a package a `LazyPackage`.

    Args:
        homes: attribute -> the module that defines it under the same name, or that it is.
    """
    module = sys.modules[package]
    vars(module)["__homes__"] = homes
    module.__class__ = LazyPackage


class Later:
    """A method that is a function without the object; its module is imported when an object's method is used."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return getattr(importlib.import_module(self._module), self._name)
