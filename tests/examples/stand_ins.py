"""Examples whose trainer is not installed, as modules: what they import from it is put in its place."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def load_example(path: Path) -> ModuleType:
    """The example, its trainer installed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_without(path: Path, trainer: str, monkeypatch: pytest.MonkeyPatch, **names: Any) -> ModuleType:
    """The example with stand-ins for all that it imports from `trainer`: those of `names`, and empty classes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == trainer:
            assert node.module is not None
            module = ModuleType(node.module)
            for alias in node.names:
                setattr(module, alias.name, names.get(alias.name, type(alias.name, (), {})))
            monkeypatch.setitem(sys.modules, node.module, module)
    return load_example(path)
