"""Finds the imports between the files of a package, and what in them breaks the architecture's rules."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Graph = Mapping[str, set[str]]
"""Module -> modules of the same package that it imports, including those only for types."""


def read_modules(root: Path) -> dict[str, ast.Module]:
    """The syntax trees of a package's modules, by dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@functools.cache
def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """A node and all nodes below it, which many rules ask for."""
    return tuple(ast.walk(node))


def imports(tree: ast.AST) -> Iterable[tuple[str, str]]:
    """(module, imported name or "") of each import, also inside functions."""
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Later":
            module, name = map(ast.literal_eval, node.args)  # Imported when it is called, see `packer_cli.lazy`.
            yield module, name


def import_graph(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Each module's imports. `from a import b` is `a.b` if that is a module; module names in strings count."""
    graph: dict[str, set[str]] = {}
    for name, tree in modules.items():
        pairs = [(module, f"{module}.{taken}") for module, taken in imports(tree)]
        targets = {inner if inner in modules else module for module, inner in pairs}
        targets |= {node.value for node in walk(tree) if isinstance(node, ast.Constant)}
        graph[name] = {target for target in targets if target in modules and target != name}
    return graph


def room_of(module: str) -> str:
    """The subpackage or file directly below the root that contains a module; `__init__` for the root."""
    return module.split(".")[1] if "." in module else "__init__"


def room_graph(graph: Graph) -> dict[str, set[str]]:
    """The imports between rooms."""
    rooms: dict[str, set[str]] = {}
    for name, targets in graph.items():
        own = rooms.setdefault(room_of(name), set())
        own |= {room_of(target) for target in targets} - {room_of(name)}
    return rooms


def circles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        reached[start] = seen
    found = {
        tuple(sorted(other for other in seen if start in reached.get(other, ())))
        for start, seen in reached.items()
        if start in seen
    }
    return [list(circle) for circle in sorted(found)]


def circles_of_neighbours(graph: Graph) -> list[list[str]]:
    """Circles among the files and folders of each folder, where what is in a folder counts as the folder."""
    folders = {module.rpartition(".")[0] for module in graph if module.count(".") > 1}
    found = []
    for folder in sorted(folders):
        depth = folder.count(".") + 2
        inside = {module: ".".join(module.split(".")[:depth]) for module in graph if module.startswith(folder + ".")}
        neighbours: dict[str, set[str]] = {}
        for module, neighbour in inside.items():
            others = {inside[target] for target in graph[module] if target in inside}
            neighbours.setdefault(neighbour, set()).update(others - {neighbour})
        found += circles(neighbours)
    return found


def against_order(graph: Graph, order: list[list[str]]) -> list[str]:
    """Imports of rooms that are not earlier in the order; rooms of the same line must not import each other."""
    level = {room: number for number, line in enumerate(order) for room in line}
    return sorted(
        f"{room} -> {other}"
        for room, others in room_graph(graph).items()
        for other in others
        if room not in level or other not in level or level[other] >= level[room]
    )


def calls(tree: ast.Module) -> set[str]:
    """Names of the functions called; an attribute of a name includes that name."""
    found = set()
    for node in walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            found.add(f"{owner.id}.{node.func.attr}" if isinstance(owner, ast.Name) else node.func.attr)
    return found


def impure(modules: Mapping[str, ast.Module], may_import: Callable[[str], set[str]]) -> list[str]:
    """Modules that import what they may not from outside the package, or do input or output."""
    found = []
    for name, tree in modules.items():
        outside = {module.split(".")[0] for module, _ in imports(tree)} - {name.split(".")[0], "__future__"}
        found += [f"{name} imports {module}" for module in sorted(outside - may_import(name))]
        found += [f"{name} calls {call}" for call in sorted(calls(tree) & {"open", "print", "input", "exec", "eval"})]
    return found


def printing(modules: Mapping[str, ast.Module]) -> list[str]:
    """Modules that print: by `print`, click, rich or the standard streams."""
    printers = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}
    return sorted(
        name
        for name, tree in modules.items()
        if calls(tree) & printers or any(module.split(".")[0] == "rich" for module, _ in imports(tree))
    )


def asking_which(modules: Mapping[str, ast.Module], names: set[str]) -> list[str]:
    """Modules that compare or look up a strategy's name; other options share some of the names."""
    found = []
    for module, tree in modules.items():
        for node in walk(tree):
            is_lookup = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
            if not is_lookup and not isinstance(node, ast.Compare):
                continue
            words = {each.value for each in walk(node) if isinstance(each, ast.Constant)}
            others = {"fill", "algorithm", "group_algorithm"}
            asked = {getattr(each, "id", getattr(each, "attr", "")) for each in walk(node)}
            if words & names and not asked & others and module not in found:
                found.append(module)
    return found


def defining_packages(root: Path) -> list[str]:
    """Packages whose `__init__.py` contains more than text, calls, `__all__`, and imports, in `try` or `if` or not."""
    return sorted(
        path.parent.relative_to(root).as_posix()
        for path in root.rglob("__init__.py")
        if not all(map(_is_no_definition, ast.parse(path.read_text(encoding="utf-8")).body))
    )


def _is_no_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets)
    if isinstance(node, (ast.If, ast.Try)):
        return all(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in node.body)
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr))


def constants(modules: Mapping[str, ast.Module], name: str) -> list[str]:
    """Modules that define a constant with this name."""
    return [
        module
        for module, tree in modules.items()
        for target in itertools.chain.from_iterable(n.targets for n in tree.body if isinstance(n, ast.Assign))
        if isinstance(target, ast.Name) and target.id == name
    ]


def defining(modules: Mapping[str, ast.Module], name: str) -> list[str]:
    """Modules that define a class or function with this name at the top level."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [
        module
        for module, tree in modules.items()
        if any(isinstance(node, kinds) and node.name == name for node in tree.body)
    ]


def untyped_borders(modules: Mapping[str, ast.Module]) -> list[str]:
    """What is public in modules that other rooms import, and has a `dict[str, Any]`, whose keys nobody can look up.

    A function counts by its parameters and result, a class by its public fields and methods. A name for foreign data,
    declared once as `Message = dict[str, Any]`, says what the keys are.
    """
    graph = import_graph(modules)
    shared = {target for name, targets in graph.items() for target in targets if room_of(target) != room_of(name)}
    shared |= {inner for module in shared if module.count(".") == 1 for inner in graph[module]}  # Re-exports.
    found = []
    for module in sorted(shared):
        for node in modules[module].body:
            if isinstance(node, ast.FunctionDef) and _is_untyped(node):
                found.append(f"{module}.{node.name}")
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found += [f"{module}.{node.name}.{_name(each)}" for each in node.body if _is_untyped(each)]
    return found


def _name(node: ast.stmt) -> str:
    """Of a function or a field."""
    return ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else getattr(node, "name", "")


def _is_untyped(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        annotations = [node.annotation]
    elif isinstance(node, ast.FunctionDef):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        annotations = [each for each in (*(arg.annotation for arg in every), node.returns) if each is not None]
    else:
        return False
    is_public = not _name(node).startswith("_") or _name(node) == "__init__"
    return is_public and any("dict[str, Any]" in ast.unparse(each) for each in annotations)
