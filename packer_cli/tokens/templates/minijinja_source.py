"""A chat template's syntax tree as source for minijinja.

jinja2 parses the template, so whitespace control and operator precedence are decided before: every literal is
written as a string, every operation in parentheses, and no blank stands between two tags. What is not known to
mean the same in both engines is refused, and the template stays with jinja2.

Methods never reach the Python objects behind the values, except the readers of a dict: minijinja would call
`messages.append` as well.
"""

from __future__ import annotations

import json
from typing import Any

UNSAFE_CHARS = frozenset("\x01\x02\x03\x04\x1c\x1d\x1e\x1f")
"""The first four are marks (see `marks`). The others are whitespace for Python and not for Rust."""

_METHODS = {
    "strip": 1, "lstrip": 1, "rstrip": 1, "startswith": 1, "endswith": 1, "replace": 2, "split": 2,
    "items": 0, "keys": 0, "values": 0, "get": 2,
}  # fmt: skip
"""Methods that both engines have, and the most arguments they may get."""
_PYTHON_METHODS = {
    "upper", "lower", "title", "capitalize", "removeprefix", "removesuffix", "rsplit", "partition", "rpartition",
    "count", "find", "rfind",
}  # fmt: skip
"""Called in Python: Unicode tables and corner cases differ."""
_FILTERS = {"trim": 1, "length": 0, "count": 0, "list": 0, "first": 0, "last": 0, "replace": 2, "items": 0}
_PYTHON_FILTERS = frozenset(("upper", "lower", "title", "capitalize", "indent"))
_LAZY_FILTERS = frozenset(("map", "select", "reject", "selectattr", "rejectattr", "reverse"))
"""Generators in jinja2 and lists in minijinja: alike only where they are used up at once."""
_LAZY_TESTS = frozenset(("defined", "undefined", "equalto", "eq", "==", "ne", "!=", "in", "none", "string"))
_TESTS = {
    "string": 0, "defined": 0, "undefined": 0, "none": 0, "mapping": 0, "number": 0, "integer": 0, "float": 0,
    "boolean": 0, "true": 0, "false": 0, "odd": 0, "even": 0, "eq": 1, "equalto": 1, "==": 1, "ne": 1, "!=": 1,
    "in": 1,
}  # fmt: skip
_WIDER_TESTS = {"iterable": ("string", "undefined"), "sequence": ("string", "mapping", "undefined")}
"""Tests that are true of more in jinja2: also where one of these is."""
_FUNCTIONS = frozenset(("namespace", "raise_exception", "strftime_now"))
"""Not `range`: minijinja cannot be interrupted, so its loops are to be as long as the data."""
_OPERATORS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "And": "and",
    "Or": "or",
}  # fmt: skip
_COMPARISONS = {
    "eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in",
}  # fmt: skip
_PYTHON_ATTRIBUTES = frozenset(name for kind in (dict, list, str) for name in dir(kind))


class NotTranslatableError(Exception):
    """The template uses what minijinja lacks or takes differently; the text says what."""


def minijinja_source(tree: Any) -> str:
    """The source of a template that writes what the tree writes; for an environment that trims nothing.

    tree: jinja2.nodes.Template; `{% generation %}` blocks are gone (see `marks`).

    Raises: NotTranslatableError.
    """
    return _Writer(tree).source


class _Writer:
    """Writes nodes; a method for each kind of node, named after it."""

    def __init__(self, tree: Any):
        from jinja2 import nodes

        self._macros = {node.name for node in tree.find_all(nodes.Macro)}
        stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
        if stored & (self._macros | _FUNCTIONS | {"loop", "self", "super", "caller", "varargs", "kwargs"}):
            raise NotTranslatableError("a variable hides a function")
        self._check_macros(tree)
        self.source = self._body(tree.body)

    def _check_macros(self, tree: Any) -> None:
        """jinja2's macros see later values of the variables around them, minijinja's those of their definition."""
        from jinja2 import nodes

        for macro in tree.find_all(nodes.Macro):
            read = {node.name for node in macro.find_all(nodes.Name) if node.ctx == "load"}
            read -= {argument.name for argument in macro.args}
            inside = set(map(id, macro.find_all((nodes.Assign, nodes.AssignBlock))))
            for node in tree.find_all((nodes.Assign, nodes.AssignBlock)):
                names = {name.name for name in nodes.List([node.target]).find_all(nodes.Name)}
                if node.lineno >= macro.lineno and names & read and id(node) not in inside:
                    raise NotTranslatableError("a macro reads a variable that is set after it")

    def _body(self, body: list[Any]) -> str:
        return "".join(map(self._node, body))

    def _node(self, node: Any) -> str:
        write = getattr(self, f"_{type(node).__name__}", None)
        if write is None:
            raise NotTranslatableError(f"{type(node).__name__} is not translated")
        return str(write(node))

    # Statements

    def _Output(self, node: Any) -> str:  # noqa: N802 - jinja's names, here and below
        return "".join(self._literal(child) for child in node.nodes)

    def _literal(self, node: Any) -> str:
        from jinja2 import nodes

        text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
        if isinstance(node, (nodes.TemplateData, nodes.Const)) and isinstance(text, str) and "{" not in text:
            return text
        return f"{{{{{self._node(node)}}}}}"

    def _For(self, node: Any) -> str:  # noqa: N802
        if node.recursive:
            raise NotTranslatableError("recursive loops are not translated")
        test = f" if {self._node(node.test)}" if node.test is not None else ""
        otherwise = f"{{%else%}}{self._body(node.else_)}" if node.else_ else ""
        head = f"{{%for {self._target(node.target)} in {self._consumed(node.iter)}{test}%}}"
        return f"{head}{self._body(node.body)}{otherwise}{{%endfor%}}"

    def _If(self, node: Any) -> str:  # noqa: N802
        text = f"{{%if {self._node(node.test)}%}}{self._body(node.body)}"
        for branch in node.elif_:
            text += f"{{%elif {self._node(branch.test)}%}}{self._body(branch.body)}"
        return text + (f"{{%else%}}{self._body(node.else_)}" if node.else_ else "") + "{%endif%}"

    def _Assign(self, node: Any) -> str:  # noqa: N802
        return f"{{%set {self._target(node.target)}={self._node(node.node)}%}}"

    def _AssignBlock(self, node: Any) -> str:  # noqa: N802
        if node.filter is not None:
            raise NotTranslatableError("set blocks with a filter are not translated")
        return f"{{%set {self._target(node.target)}%}}{self._body(node.body)}{{%endset%}}"

    def _Macro(self, node: Any) -> str:  # noqa: N802
        names = [argument.name for argument in node.args]
        defaults = [""] * (len(names) - len(node.defaults)) + [f"={self._node(value)}" for value in node.defaults]
        arguments = ",".join(name + default for name, default in zip(names, defaults, strict=True))
        return f"{{%macro {node.name}({arguments})%}}{self._body(node.body)}{{%endmacro%}}"

    def _With(self, node: Any) -> str:  # noqa: N802
        if len(node.targets) > 1:
            raise NotTranslatableError("with blocks of several variables are not translated")
        pairs = [
            f"{self._target(target)}={self._node(value)}"
            for target, value in zip(node.targets, node.values, strict=True)
        ]
        return f"{{%with {','.join(pairs)}%}}{self._body(node.body)}{{%endwith%}}"

    def _Scope(self, node: Any) -> str:  # noqa: N802
        return f"{{%with%}}{self._body(node.body)}{{%endwith%}}"

    def _Break(self, _: Any) -> str:  # noqa: N802
        return "{%break%}"

    def _Continue(self, _: Any) -> str:  # noqa: N802
        return "{%continue%}"

    def _target(self, node: Any) -> str:
        from jinja2 import nodes

        if isinstance(node, nodes.NSRef):
            return f"{node.name}.{_attribute(node.attr)}"
        if isinstance(node, nodes.Tuple):
            return f"({','.join(map(self._target, node.items))},)"
        assert isinstance(node, nodes.Name)
        return str(node.name)

    # Expressions

    def _Name(self, node: Any) -> str:  # noqa: N802
        if node.name in (
            "self",
            "super",
            "caller",
            "varargs",
            "kwargs",
            "lipsum",
            "cycler",
            "joiner",
            "dict",
            "debug",
        ):
            raise NotTranslatableError(f"{node.name} is not translated")
        return str(node.name)

    def _Const(self, node: Any) -> str:  # noqa: N802
        value = node.value
        if isinstance(value, str):
            return _string(value)
        if value is None or isinstance(value, bool):
            return {None: "none", True: "true", False: "false"}[value]
        if isinstance(value, int) and abs(value) < 1 << 63:
            return str(value)
        raise NotTranslatableError(f"the constant {value!r} is not translated")

    def _TemplateData(self, node: Any) -> str:  # noqa: N802
        return _string(node.data)

    def _List(self, node: Any) -> str:  # noqa: N802
        return f"[{','.join(map(self._node, node.items))}]"

    def _Tuple(self, node: Any) -> str:  # noqa: N802
        return f"({''.join(self._node(item) + ',' for item in node.items)})"

    def _Dict(self, node: Any) -> str:  # noqa: N802
        return "{" + ",".join(f"{self._node(pair.key)}:{self._node(pair.value)}" for pair in node.items) + " }"

    def _Getattr(self, node: Any) -> str:  # noqa: N802
        if node.attr in _PYTHON_ATTRIBUTES:
            raise NotTranslatableError(f".{node.attr} is a method")
        return f"{self._node(node.node)}.{_attribute(node.attr)}"

    def _Getitem(self, node: Any) -> str:  # noqa: N802
        from jinja2 import nodes

        base, key = self._node(node.node), node.arg
        if isinstance(key, nodes.Slice):
            parts = ["" if part is None else self._node(part) for part in (key.start, key.stop, key.step)]
            return f"{base}[{':'.join(parts if parts[2] else parts[:2])}]"
        if isinstance(key, nodes.Const) and isinstance(key.value, str):
            # Several times as fast as brackets.
            if key.value.isascii() and key.value.isidentifier() and key.value not in _PYTHON_ATTRIBUTES:
                return f"{base}.{_attribute(key.value)}"
            if key.value.startswith("_"):
                raise NotTranslatableError("names with a leading underscore are not translated")
        return f"{base}[{self._node(key)}]"

    def _Call(self, node: Any) -> str:  # noqa: N802
        from jinja2 import nodes

        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError("calls with * or ** are not translated")
        called = node.node
        arguments = [self._node(argument) for argument in node.args]
        arguments += [f"{keyword.key}={self._node(keyword.value)}" for keyword in node.kwargs]
        listed = ",".join(arguments)
        if isinstance(called, nodes.Name) and called.name in self._macros | _FUNCTIONS:
            return f"{called.name}({listed})"
        if isinstance(called, nodes.Getattr) and not node.kwargs:
            name = called.attr
            if name in _PYTHON_METHODS:
                return f"({self._node(called.node)}|_method({','.join([_string(name), *arguments])}))"
            if len(arguments) <= _METHODS.get(name, -1) and (name != "split" or arguments):
                return f"{self._node(called.node)}.{name}({listed})"
        raise NotTranslatableError("a call is not translated")

    def _Filter(self, node: Any) -> str:  # noqa: N802
        if node.node is None or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError(f"|{node.name} is not translated here")
        name, arguments = node.name, [self._node(argument) for argument in node.args]
        keywords = [f"{keyword.key}={self._node(keyword.value)}" for keyword in node.kwargs]
        value = self._consumed(node.node) if name in ("list", "first", "join") else self._node(node.node)
        if name in ("tojson", "string"):
            # Python cannot tell undefined from none.
            return f"({value}|{name}({','.join([f'{value} is defined', *arguments, *keywords])}))"
        if name in _PYTHON_FILTERS:
            return f"({value}|_filter({','.join([_string(name), *arguments, *keywords])}))"
        if name in ("default", "d") and not keywords:
            return f"({value}|default({','.join(arguments)}))"
        if name == "join" and len(arguments) <= 1 and not keywords:
            return f"({value}|join({','.join(arguments)}))"
        if len(arguments) <= _FILTERS.get(name, -1) and not keywords:
            return f"({value}|{name}({','.join(arguments)}))"
        raise NotTranslatableError(f"|{name} is not translated")

    def _consumed(self, node: Any) -> str:
        """An expression whose items are taken one by one at once."""
        from jinja2 import nodes

        if not (isinstance(node, nodes.Filter) and node.name in _LAZY_FILTERS) or node.node is None:
            return self._node(node)
        value = self._consumed(node.node)
        arguments = [self._node(argument) for argument in node.args]
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError(f"|{node.name} is not translated here")
        if node.name == "map":
            if arguments or [keyword.key for keyword in node.kwargs] != ["attribute"]:
                raise NotTranslatableError("|map is not translated but for an attribute")
            attribute = node.kwargs[0].value
            if getattr(attribute, "value", ".") in _PYTHON_ATTRIBUTES or not _is_plain_attribute(attribute):
                raise NotTranslatableError("|map is not translated for this attribute")
            return f"({value}|map(attribute={self._node(attribute)}))"
        if node.kwargs:
            raise NotTranslatableError(f"|{node.name} is not translated with keywords")
        if node.name.endswith("attr"):
            known = node.args and _is_plain_attribute(node.args[0])
            if not known or (len(node.args) > 1 and getattr(node.args[1], "value", None) not in _LAZY_TESTS):
                raise NotTranslatableError(f"|{node.name} is not translated with this test")
        elif arguments:
            raise NotTranslatableError(f"|{node.name} is not translated with a test")
        return f"({value}|{node.name}({','.join(arguments)}))"

    def _Test(self, node: Any) -> str:  # noqa: N802
        value, name = self._node(node.node), node.name
        if node.kwargs or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError(f"the test {name} is not translated with keywords")
        arguments = [self._node(argument) for argument in node.args]
        if name in _WIDER_TESTS and not arguments:
            return "(" + " or ".join(f"{value} is {test}" for test in (*_WIDER_TESTS[name], name)) + ")"
        if len(arguments) != _TESTS.get(name, -1):
            raise NotTranslatableError(f"the test {name} is not translated")
        if arguments and not name.isalpha():
            return f"({value} {name} {arguments[0]})"
        return f"({value} is {name}{f'({arguments[0]})' if arguments else ''})"

    def _Compare(self, node: Any) -> str:  # noqa: N802
        if len(node.ops) != 1:
            raise NotTranslatableError("comparisons of three values are not translated")
        (operand,) = node.ops
        return f"({self._node(node.expr)} {_COMPARISONS[operand.op]} {self._node(operand.expr)})"

    def _Concat(self, node: Any) -> str:  # noqa: N802
        return f"({'~'.join(map(self._node, node.nodes))})"

    def _CondExpr(self, node: Any) -> str:  # noqa: N802
        otherwise = f" else {self._node(node.expr2)}" if node.expr2 is not None else ""
        return f"({self._node(node.expr1)} if {self._node(node.test)}{otherwise})"

    def _Not(self, node: Any) -> str:  # noqa: N802
        return f"(not {self._node(node.node)})"

    def _Neg(self, node: Any) -> str:  # noqa: N802
        return f"(-{self._node(node.node)})"

    def _binary(self, node: Any) -> str:
        return f"({self._node(node.left)} {_OPERATORS[type(node).__name__]} {self._node(node.right)})"

    _Add = _Sub = _Mul = _Div = _FloorDiv = _Mod = _Pow = _And = _Or = _binary


def _string(text: str) -> str:
    if not UNSAFE_CHARS.isdisjoint(text):
        raise NotTranslatableError("the template holds control characters")
    return json.dumps(text, ensure_ascii=False)


def _attribute(name: str) -> str:
    if name.startswith("_") or not name.isascii():
        raise NotTranslatableError("names with a leading underscore are not translated")
    return name


def _is_plain_attribute(node: Any) -> bool:
    """Whether it names one key: jinja2 takes dots apart and digits for positions."""
    value = getattr(node, "value", None)
    return isinstance(value, str) and value.isidentifier() and not value.startswith("_")
