"""Lists docstrings that begin with a word that leaves open which thing it names; exits with 1 if there are any.

Run as `python scripts/docstrings.py [FILE_OR_FOLDER ...]`; the default is packer_cli.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = {"what", "of", "those", "that", "as", "likewise", "how", "it", "where"}


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, and of each string below a constant or field."""
    for body in (getattr(node, "body", None) for node in ast.walk(tree)):
        for before, statement in zip([None, *body], body, strict=False) if isinstance(body, list) else []:
            match statement:
                case ast.Expr(ast.Constant(str(text))) if isinstance(before, ast.Assign | ast.AnnAssign | None):
                    yield statement.lineno, text.strip()


def main(names: list[str]) -> int:
    num_found = 0
    for path in (path for name in names for path in [Path(name), *sorted(Path(name).rglob("*.py"))] if path.is_file()):
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            if (text.split() or [""])[0].strip(",.:;").removesuffix("'s").lower() in FORBIDDEN:
                print(f"{path}:{line}: {text.splitlines()[0]}")
                num_found += 1
    return 1 if num_found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["packer_cli"]))
