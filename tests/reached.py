"""Which definitions of a package something uses: a walk over its syntax trees, from what users call."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping

from tests.house import import_graph, imports, walk

Parts = Mapping[str, list[ast.AST]]
"""Dotted name -> what runs where it is used: a module's statements, a class without its public methods, a function."""
Bound = Mapping[str, Mapping[str, str]]
"""Module -> name in it -> dotted name that it stands for."""


def unreached(modules: Mapping[str, ast.Module], roots: Iterable[str]) -> list[str]:
    """Functions, classes, public methods and constants, by dotted name, that nothing uses on the way from the roots.

    A name is looked up in its module, through imports and re-exports. An attribute of whatever stands for each method
    of that name, and for each definition of a module that is imported as a whole; so some that are unused are missed.

    Args:
        roots: what users call. Of a class, that is each public method.
    """
    parts = definitions(modules)
    own: dict[str, dict[str, str]] = {module: {} for module in modules}
    for name in parts:
        own.setdefault(owner_of(name), {})[name.rpartition(".")[2]] = name
    bound = {module: own[module] | taken_names(tree) for module, tree in modules.items()}
    graph = import_graph(modules)
    waiting = [follow(root, bound) for root in roots]
    waiting += [name for name in parts if owner_of(name) in set(waiting) - set(modules)]
    reached: set[str] = set()
    attributes: set[str] = set()
    callbacks = called_by_libraries(modules, bound)
    wholes = {target for names in bound.values() for target in names.values() if target in modules}
    while waiting:
        name = waiting.pop()
        if name in parts and name not in reached:
            reached.add(name)
            waiting += [owner_of(name), *graph.get(name, ())]
            module = next(each for each in around(name) if each in modules)
            for part in parts[name]:
                waiting += (follow(each, bound) for each in names_in(part, bound[module]))
                attributes |= {node.attr for node in walk(part) if isinstance(node, ast.Attribute)}
            if name in callbacks:
                waiting += [each for each in parts if owner_of(each) == name]
        if not waiting:
            taken = {each for each in set(parts) - set(modules) - reached if each.rpartition(".")[2] in attributes}
            waiting = [each for each in taken if owner_of(each) in (reached - set(modules)) | wholes]
    return sorted(set(parts) - reached - set(modules))


def definitions(modules: Mapping[str, ast.Module]) -> Parts:
    """All modules, and what they define."""
    parts: dict[str, list[ast.AST]] = {module: [] for module in modules}
    for module, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                public = [each for each in node.body if isinstance(each, ast.FunctionDef) and is_public(each)]
                rest = [each for each in node.body if each not in public]
                parts[f"{module}.{node.name}"] = [*node.bases, *node.keywords, *node.decorator_list, *rest]
                for method in public:
                    parts.setdefault(f"{module}.{node.name}.{method.name}", []).append(method)
            elif not isinstance(node, (ast.Import, ast.ImportFrom)):
                for name in defined_by(node) or [""]:
                    parts.setdefault(f"{module}.{name}".rstrip("."), []).append(node)
    return parts


def is_public(method: ast.FunctionDef) -> bool:
    """Whether others use it by its name. A property in the JSON of a record is a part of its class."""
    return method.name[0] != "_" and "in_json" not in map(ast.unparse, method.decorator_list)


def defined_by(node: ast.stmt) -> list[str]:
    """Names of a statement's function or constants; `__all__` and the like define nothing."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = getattr(node, "targets", []) if not isinstance(node, ast.AnnAssign) else [node.target]
    nodes = [each for target in targets for each in walk(target)]
    names = [each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return [name for name in names if not name.startswith("__")]


def taken_names(tree: ast.Module) -> dict[str, str]:
    """What the names that a module imports, wherever it does so, stand for."""
    bound: dict[str, str] = {}
    for node in walk(tree):
        if isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            bound |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return bound


def follow(name: str, bound: Bound) -> str:
    """The definition that a dotted name means; a package may only re-export it."""
    while True:
        found = bound.get(owner_of(name), {}).get(name.rpartition(".")[2], name)
        if found == name:
            return name
        name = found


def names_in(part: ast.AST, bound: Mapping[str, str]) -> Iterator[str]:
    """Dotted names that a part uses."""
    yield from (f"{module}.{taken}" if taken else module for module, taken in imports(part))
    for node in walk(part):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield bound.get(node.id, "")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{bound.get(node.value.id, '')}.{node.attr}"


def called_by_libraries(modules: Mapping[str, ast.Module], bound: Bound) -> set[str]:
    """Classes made from a library's, which calls their methods."""
    bases = {
        f"{module}.{node.name}": [ast.unparse(base).partition("[")[0] for base in node.bases]
        for module, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }

    def is_called(name: str) -> bool:
        names = [follow(bound[owner_of(name)].get(base, base), bound) for base in bases[name]]
        return any(is_called(base) if base in bases else base.rpartition(".")[2] not in QUIET for base in names)

    return {name for name in bases if is_called(name)}


QUIET = {"ABC", "BaseModel", "IntEnum", "NamedTuple", "Protocol", *vars(builtins)}
"""Classes that call no public method of those made from them."""


def owner_of(name: str) -> str:
    """The class, module or package that holds a definition."""
    return name.rpartition(".")[0]


def around(name: str) -> Iterator[str]:
    """A name, and what holds it, from the inside."""
    while name:
        yield name
        name = owner_of(name)
