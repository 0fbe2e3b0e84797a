"""Rules of what means the same in jinja2 and minijinja, and what must run in Python.

Finds expressions that may be lists or dicts made by the template itself. The engines print the lists and dicts of a
conversation alike, but not these.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes

MOST_REPEATED = 1000
"""Most chars of an expression to write more than once; without a limit, nested ones would grow exponentially."""

FUNCTIONS = frozenset(("namespace", "raise_exception", "strftime_now"))
"""Without `range`: minijinja cannot be interrupted, so its loops must be no longer than the data."""
OTHER_GLOBALS = frozenset(
    ("self", "super", "caller", "varargs", "kwargs", "lipsum", "cycler", "joiner", "dict", "debug")
)
"""Names that are built into one of the engines."""
LOOP_ATTRIBUTES = frozenset(
    ("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem")
)
DICT_ATTRIBUTES = frozenset(dir(dict))
PYTHON_ATTRIBUTES = DICT_ATTRIBUTES | frozenset(dir(list)) | frozenset(dir(str))
"""Names that may stand for a method."""

METHODS = {
    "strip": 1, "lstrip": 1, "rstrip": 1, "startswith": 1, "endswith": 1, "replace": 2, "split": 2,
    "items": 0, "keys": 0, "values": 0, "get": 2,
}  # fmt: skip
"""Methods that are the same in both engines if their arguments are strings, and the most arguments of each."""
PYTHON_METHODS = frozenset((
    "upper", "lower", "title", "capitalize", "removeprefix", "removesuffix", "rsplit", "partition", "rpartition",
    "count", "find", "rfind",
))  # fmt: skip
"""Methods of strings to call in Python, because Unicode tables and corner cases differ."""
LISTING_METHODS = frozenset(("split", "rsplit", "partition", "rpartition", "items", "keys", "values"))
"""Methods that return lists."""

FILTERS = {"trim": 1, "length": 0, "count": 0, "list": 0, "first": 0, "last": 0, "replace": 2, "items": 0, "join": 1}
"""Filters, and the most arguments of each."""
PYTHON_FILTERS = frozenset(("upper", "lower", "title", "capitalize", "indent"))
LAZY_FILTERS = frozenset(("map", "select", "reject", "selectattr", "rejectattr"))
"""Generators in jinja2 and lists in minijinja: alike only if they are consumed at once."""
LAZY_TESTS = frozenset(("defined", "undefined", "equalto", "eq", "==", "ne", "!=", "in", "none", "string"))
LISTING_FILTERS = LAZY_FILTERS | {"list", "items"}
"""Filters that return lists."""

TESTS = frozenset((
    "string", "defined", "undefined", "none", "mapping", "number", "integer", "float", "boolean", "true", "false",
))  # fmt: skip
"""Tests, without arguments, that are the same in both engines."""
OTHER_TESTS = {
    "iterable": "({0} is string or {0} is undefined or {0} is iterable and {0} is not none)",
    "sequence": "({0} is string or {0} is mapping or {0} is undefined or {0} is sequence)",
}
"""Tests that differ between the engines, and their meaning in jinja2."""

OPERATORS = {"Add": "+", "Sub": "-", "FloorDiv": "//", "Mod": "%", "And": "and", "Or": "or"}
"""Without those that return floats: minijinja passes whole floats to Python as integers."""
EQUALITY = {"eq": "==", "ne": "!="}
ORDER = {"gt": ">", "gteq": ">=", "lt": "<", "lteq": "<="}


class NotTranslatableError(Exception):
    """The template uses something that minijinja lacks or treats differently; the message says what."""


def is_text(node: Any) -> bool:
    """Whether a node is a string literal."""
    return isinstance(getattr(node, "value", None), str)


def are_usual(method: str, arguments: list[Any]) -> bool:
    """Whether a method that both engines have treats these arguments alike in both."""
    if method != "split":
        return all(map(is_text, arguments))
    if not arguments or not is_text(arguments[0]) or not arguments[0].value:
        return False
    return all(type(getattr(argument, "value", None)) is int for argument in arguments[1:])


def is_plain_attribute(node: Any) -> bool:
    """Whether a node names one key: jinja2 splits names at dots, and reads digits as indices."""
    if not is_text(node):
        return False
    name = node.value
    return name.isidentifier() and not name.startswith("_") and name not in PYTHON_ATTRIBUTES


class OwnLists:
    """The expressions in a template (jinja2.nodes.Template) that may be its own lists or dicts.

    Misses a list that the template puts into one of the conversation's; only the comparisons with jinja2 find those.
    """

    def __init__(self, tree: Any):
        self._names: set[str] = set()  # Of variables, and of attributes of namespaces.
        named = list(_named_values(tree))
        known = -1
        while known < len(self._names):
            known = len(self._names)
            self._names.update(name for name, value in named if self.may_hold(value))

    def may_hold(self, node: Any) -> bool:
        """Whether the value of an expression may be such a list or dict."""
        if isinstance(node, nodes.Name):
            return node.name in self._names
        if isinstance(node, nodes.Getattr):
            return node.attr in self._names and isinstance(node.node, nodes.Name)
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            return node.node.attr in LISTING_METHODS or any(map(self.may_hold, node.args))
        if isinstance(node, nodes.Filter):
            is_default = node.name in ("default", "d") and any(map(self.may_hold, (node.node, *node.args)))
            return is_default or node.name in LISTING_FILTERS
        if isinstance(node, nodes.CondExpr):
            return any(map(self.may_hold, (node.expr1, node.expr2)))
        if isinstance(node, (nodes.Add, nodes.And, nodes.Or)):
            return self.may_hold(node.left) or self.may_hold(node.right)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self.may_hold(node.node)
        return isinstance(node, (nodes.List, nodes.Tuple, nodes.Dict))


def _named_values(tree: Any) -> Any:
    """Yield (name, expression) of all assignments and arguments."""
    for node in tree.find_all(nodes.Assign):
        yield _name(node.target), node.node
    for keyword in tree.find_all(nodes.Keyword):
        yield keyword.key, keyword.value
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        for call in tree.find_all(nodes.Call):
            if getattr(call.node, "name", "") == macro.name:
                yield from zip(names, call.args, strict=False)
        yield from zip(names[::-1], macro.defaults[::-1], strict=False)


def _name(target: Any) -> str:
    return str(getattr(target, "attr", getattr(target, "name", "")))
