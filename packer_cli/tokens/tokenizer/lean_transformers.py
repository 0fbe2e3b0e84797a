"""Imports transformers' submodules without the package itself, which reads all its model files, 0.35 s of CPU.

Only names of the package itself (`transformers.AutoTokenizer`) need that; the first one used pays for it.
"""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A stand-in for the package, which runs the package's own code as soon as a name is missing."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return importlib.metadata.version(self.__name__)
        namespace = vars(self)
        loader = namespace.pop("_postponed", None)
        if loader is not None:
            loader.exec_module(self)
        whole = sys.modules[self.__name__]  # The package replaces itself by another module.
        if whole is self:  # The package is still loading.
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(whole, name)


def postpone_package(name: str = "transformers") -> None:
    """Make `import transformers.x.y` import only that module; does nothing if the package is already loaded."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None:
        return
    package = _Package(name)
    package.__dict__.update(
        __file__=spec.origin,
        __loader__=spec.loader,
        __package__=name,
        __path__=spec.submodule_search_locations,
        __spec__=spec,
        _postponed=spec.loader,
    )
    sys.modules[name] = package
