"""Chat templates to sweep: those in wheels that are installed, and those in files and folders."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packer_cli.tokens.tokenizer.loading import NAMED, read_named

WHEELS = {
    "trl": "chat_templates",
    "axolotl": "utils/chat_templates/templates",
    "unsloth": ".",
    "swift": "template",
}
"""Package -> where its templates are; of ms-swift those in Jinja, which are few."""
_SUFFIXES = (".jinja", ".jinja2", ".j2")


class Source(NamedTuple):
    """A chat template."""

    name: str
    text: str


def of_hbpack() -> list[Source]:
    """Those that `--chat-template` knows by name."""
    return [Source(f"hbpack/{name}", read_named(name)) for name in NAMED]


def of_wheel(package: str) -> list[Source] | None:
    """Those in a package, which is not imported; None: it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    return of_path(Path(found.origin).parent / WHEELS[package], package)


def of_path(path: Path, title: str = "") -> list[Source]:
    """Those in a file or, with sub-folders, in a folder: Jinja files, texts in Python files, tokenizer configs."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found = []
    for file in files:
        place = file.relative_to(path) if path.is_dir() else Path(file.name)
        name = "/".join(filter(None, (title, *place.with_suffix("").parts)))
        found += [Source(f"{name}{part}", text) for part, text in _texts(file)]
    return found


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    if file.suffix in _SUFFIXES:
        text = file.read_text(encoding="utf-8")
        if "messages" in text:
            yield "", text
    elif file.suffix == ".py":
        yield from _literals(ast.parse(file.read_text(encoding="utf-8")))
    elif file.name == "tokenizer_config.json":
        text = json.loads(file.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(text, str):
            yield "", text


def _literals(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Templates that Python assigns to a name, or has in a dict."""
    for node in ast.walk(tree):
        named: list[tuple[Any, Any]] = []
        if isinstance(node, ast.Assign):
            named = [(getattr(node.targets[0], "id", ""), node.value)]
        elif isinstance(node, ast.Dict):
            named = [(getattr(key, "value", ""), value) for key, value in zip(node.keys, node.values, strict=True)]
        for name, value in named:
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and _is_template(value.value):
                yield f":{name or value.lineno}", value.value


def _is_template(text: str) -> bool:
    return "{%" in text and "messages" in text
