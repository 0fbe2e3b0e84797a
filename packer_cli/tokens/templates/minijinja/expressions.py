"""Writes jinja2's expression nodes as source for minijinja.

Every operation is in parentheses, so precedence is that of jinja2's parser. Only methods that read a dict may reach
the Python objects behind the values: minijinja would also call `messages.append`.
"""

from __future__ import annotations

import json
from typing import Any

from packer_cli.tokens.templates.minijinja import rules
from packer_cli.tokens.templates.minijinja.rules import NotTranslatableError, OwnLists


class ExpressionWriter:
    """Writes expressions of one template (jinja2.nodes.Template). The method `_X` writes a node of class `X`."""

    def __init__(self, tree: Any):
        from jinja2 import nodes

        macros = list(tree.find_all(nodes.Macro))
        self._macros = {macro.name for macro in macros}
        self._macros_with_defaults = {macro.name for macro in macros if macro.defaults}
        self._stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
        self._namespaces = {node.name for node in tree.find_all(nodes.NSRef)}
        for node in tree.find_all(nodes.Assign):
            if isinstance(node.node, nodes.Call) and getattr(node.node.node, "name", "") == "namespace":
                self._namespaces.add(getattr(node.target, "name", ""))
        self._own_lists = OwnLists(tree)

    def write(self, node: Any) -> str:
        """The source of a node.

        Raises:
            NotTranslatableError: it may mean something else to minijinja.
        """
        write = getattr(self, f"_{type(node).__name__}", None)
        if write is None:
            raise NotTranslatableError(f"{type(node).__name__} is not translated")
        return str(write(node))

    def printed(self, node: Any) -> str:
        """The source of an expression that becomes text."""
        if self._own_lists.may_hold(node):
            raise NotTranslatableError("the template prints a list or dict of its own")
        return self.write(node)

    def repeated(self, node: Any, *, is_printed: bool = False) -> str:
        """The source of an expression that is written more than once."""
        text = self.printed(node) if is_printed else self.write(node)
        if len(text) > rules.MOST_REPEATED:
            raise NotTranslatableError("an expression is too long to be written more than once")
        return text

    # Values

    def _Name(self, node: Any) -> str:  # noqa: N802 - jinja's names, here and below
        if node.name in rules.OTHER_GLOBALS:
            raise NotTranslatableError(f"{node.name} is not translated")
        if node.name in self._namespaces:
            raise NotTranslatableError("a namespace is not translated except for its attributes")
        return str(node.name)

    def _Const(self, node: Any) -> str:  # noqa: N802
        value = node.value
        if isinstance(value, str):
            return quoted(value)
        if value is None or isinstance(value, bool):
            return {None: "none", True: "true", False: "false"}[value]
        if isinstance(value, int) and abs(value) < 1 << 63:
            return str(value)
        raise NotTranslatableError(f"the constant {value!r} is not translated")

    def _TemplateData(self, node: Any) -> str:  # noqa: N802
        return quoted(node.data)

    def _List(self, node: Any) -> str:  # noqa: N802
        return f"[{','.join(map(self.write, node.items))}]"

    def _Tuple(self, node: Any) -> str:  # noqa: N802
        return f"({''.join(self.write(item) + ',' for item in node.items)})"

    def _Dict(self, node: Any) -> str:  # noqa: N802
        # Without the blank, two braces could end an output.
        return "{" + ",".join(f"{self.write(pair.key)}:{self.write(pair.value)}" for pair in node.items) + " }"

    # Parts of values

    def _Getattr(self, node: Any) -> str:  # noqa: N802
        from jinja2 import nodes

        owner = node.node.name if isinstance(node.node, nodes.Name) else ""
        if owner == "loop":
            if node.attr not in rules.LOOP_ATTRIBUTES:
                raise NotTranslatableError(f"loop.{node.attr} is not translated")
        elif owner not in self._namespaces and node.attr in rules.PYTHON_ATTRIBUTES:
            raise NotTranslatableError(f".{node.attr} is a method")
        return f"{self._owner(node.node)}.{attribute(node.attr)}"

    def _owner(self, node: Any) -> str:
        """The source of an expression whose attribute is read."""
        from jinja2 import nodes

        is_namespace = isinstance(node, nodes.Name) and node.name in self._namespaces
        return str(node.name) if is_namespace else self.write(node)

    def _Getitem(self, node: Any) -> str:  # noqa: N802
        from jinja2 import nodes

        key = node.arg
        if isinstance(key, nodes.Slice):
            return self._sliced(node, "_slice")
        if isinstance(key, nodes.Const) and isinstance(key.value, str):
            if key.value.startswith("_"):
                raise NotTranslatableError("names with a leading underscore are not translated")
            if key.value in rules.PYTHON_ATTRIBUTES:
                return f"({self.write(node.node)}|_item({quoted(key.value)}))"
            if key.value.isascii() and key.value.isidentifier():
                return f"{self._owner(node.node)}.{key.value}"  # Several times as fast as brackets.
        return f"{self.write(node.node)}[{self.write(key)}]"

    def _sliced(self, node: Any, function: str) -> str:
        parts = node.arg
        bounds = map(self._bound, (parts.start, parts.stop, parts.step))
        return f"({self.write(node.node)}|{function}({','.join(bounds)}))"

    def _bound(self, node: Any) -> str:
        """A bound of a slice. Anything but a number makes the render fail: Python cannot tell undefined from none."""
        from jinja2 import nodes

        if node is None or (isinstance(node, nodes.Const) and node.value is None):
            return "none"
        number = node.node if isinstance(node, nodes.Neg) else node
        if isinstance(number, nodes.Const) and type(number.value) is int:
            return self.write(node)
        return f"({self.write(node)}+0)"

    # Operations

    def _Compare(self, node: Any) -> str:  # noqa: N802
        if len(node.ops) != 1:
            raise NotTranslatableError("comparisons of three values are not translated")
        (operand,) = node.ops
        if operand.op in ("in", "notin"):
            found = self._membership(node.expr, operand.expr)
            return found if operand.op == "in" else f"(not {found})"
        left, right = self.write(node.expr), self.write(operand.expr)
        if operand.op in rules.EQUALITY:
            return f"({left} {rules.EQUALITY[operand.op]} {right})"
        # minijinja would order anything; the difference fails unless both are numbers.
        return f"(({left} - {right}) {rules.ORDER[operand.op]} 0)"

    def _membership(self, item: Any, container: Any) -> str:
        from jinja2 import nodes

        one, many = self.write(item), self.write(container)
        is_usual = is_text(item) and item.value not in rules.PYTHON_ATTRIBUTES
        if is_usual or isinstance(container, (nodes.List, nodes.Tuple)):
            return f"({one} in {many})"
        return f"({many}|_contains({one}))"

    def _Concat(self, node: Any) -> str:  # noqa: N802
        return f"({'~'.join(map(self.printed, node.nodes))})"

    def _CondExpr(self, node: Any) -> str:  # noqa: N802
        otherwise = f" else {self.write(node.expr2)}" if node.expr2 is not None else ""
        return f"({self.write(node.expr1)} if {self.write(node.test)}{otherwise})"

    def _Not(self, node: Any) -> str:  # noqa: N802
        return f"(not {self.write(node.node)})"

    def _Neg(self, node: Any) -> str:  # noqa: N802
        return f"(-{self.write(node.node)})"

    def _Mul(self, node: Any) -> str:  # noqa: N802
        # A string times a number could be huge; the difference fails unless both are numbers.
        return f"(({self.write(node.left)} - 0) * ({self.write(node.right)} - 0))"

    def _binary(self, node: Any) -> str:
        return f"({self.write(node.left)} {rules.OPERATORS[type(node).__name__]} {self.write(node.right)})"

    _Add = _Sub = _FloorDiv = _Mod = _And = _Or = _binary


def quoted(text: str) -> str:
    """A string literal for minijinja."""
    return json.dumps(text, ensure_ascii=False)


def attribute(name: str) -> str:
    """The name of an attribute, if minijinja may look it up."""
    if name.startswith("_") or not name.isascii():
        raise NotTranslatableError("names with a leading underscore are not translated")
    return name


def is_text(node: Any) -> bool:
    """Whether a node is a string literal."""
    return isinstance(getattr(node, "value", None), str)
