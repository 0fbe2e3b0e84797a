"""transformers' submodules without the work of the package: it reads the heads of all its model files, 0.35 s of CPU.

Only names that are taken from the package itself (`transformers.AutoTokenizer`) need that; the first one pays then.
"""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """Stands for the package until a name is missing; then the package's own code runs."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return importlib.metadata.version(self.__name__)
        namespace = vars(self)
        loader = namespace.pop("_postponed", None)
        if loader is not None:
            loader.exec_module(self)
        whole = sys.modules[self.__name__]  # The package puts another module in its own place.
        if whole is self:  # It asks while it loads.
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(whole, name)


def postpone_package(name: str = "transformers") -> None:
    """Make `import transformers.x.y` import only that; nothing happens where the package is loaded already."""
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
