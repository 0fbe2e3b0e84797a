"""Calls, filters and tests as source for minijinja, and expressions whose items a loop or filter takes."""

from __future__ import annotations

from typing import Any

from packer_cli.tokens.templates.minijinja import rules
from packer_cli.tokens.templates.minijinja.expressions import ExpressionWriter, is_text, quoted
from packer_cli.tokens.templates.minijinja.rules import NotTranslatableError


class CallWriter(ExpressionWriter):
    """Also writes calls, filters and tests."""

    def consumed(self, node: Any) -> str:
        """The source of an expression whose items are all consumed at once."""
        from jinja2 import nodes

        if isinstance(node, nodes.Filter) and node.name in rules.LAZY_FILTERS and node.node is not None:
            return self._lazy(node)
        if isinstance(node, (nodes.List, nodes.Tuple, nodes.Dict)):
            return self.write(node)
        if isinstance(node, nodes.Name) and node.name == "messages" and "messages" not in self._stored:
            return node.name
        if isinstance(node, nodes.Call) and getattr(node.node, "attr", "") in rules.LISTING_METHODS:
            return self.write(node)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self._sliced(node, "_list_slice")
        # jinja2 does not iterate over none, and minijinja not over a string.
        value = self.repeated(node)
        return f"({value} if {value} is not none and {value} is not string else raise_exception())"

    def _lazy(self, node: Any) -> str:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError(f"|{node.name} is not translated here")
        value, arguments = self.consumed(node.node), [self.write(argument) for argument in node.args]
        if node.name == "map":
            if arguments or [keyword.key for keyword in node.kwargs] != ["attribute"]:
                raise NotTranslatableError("|map is not translated except for an attribute")
            attribute = node.kwargs[0].value
            if not _is_plain_attribute(attribute):
                raise NotTranslatableError("|map is not translated for this attribute")
            return f"({value}|map(attribute={self.write(attribute)}))"
        if node.kwargs:
            raise NotTranslatableError(f"|{node.name} is not translated with keywords")
        tests = node.args
        if node.name.endswith("attr"):
            if not tests or not _is_plain_attribute(tests[0]):
                raise NotTranslatableError(f"|{node.name} is not translated for this attribute")
            tests = tests[1:]
        if tests and getattr(tests[0], "value", None) not in rules.LAZY_TESTS:
            raise NotTranslatableError(f"|{node.name} is not translated with this test")
        if node.name == "reverse":
            return f"({value}|_list_slice(none,none,-1))"  # minijinja does not reverse dicts.
        return f"({value}|{node.name}({','.join(arguments)}))"

    def _Call(self, node: Any) -> str:  # noqa: N802
        from jinja2 import nodes

        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError("calls with * or ** are not translated")
        called = node.node
        if isinstance(called, nodes.Name) and called.name in self._macros | rules.FUNCTIONS:
            write = self._defined if called.name in self._macros_with_defaults else self.write
            arguments = [write(argument) for argument in node.args]
            arguments += [f"{keyword.key}={write(keyword.value)}" for keyword in node.kwargs]
            return f"{called.name}({','.join(arguments)})"
        if not isinstance(called, nodes.Getattr) or node.kwargs:
            raise NotTranslatableError("a call is not translated")
        name, value, arguments = called.attr, self.write(called.node), [self.write(item) for item in node.args]
        if name in rules.PYTHON_METHODS or (name in rules.METHODS and not _are_usual(name, node.args)):
            return f"({value}|_method({','.join([quoted(name), *arguments])}))"
        if len(arguments) <= rules.METHODS.get(name, -1):
            return f"{value}.{name}({','.join(arguments)})"
        raise NotTranslatableError(f"a call of {name} is not translated")

    def _defined(self, node: Any) -> str:
        """An argument of a macro; for an undefined one, minijinja would use the default."""
        from jinja2 import nodes

        if isinstance(node, nodes.Const):
            return self.write(node)
        value = self.repeated(node)
        return f"({value} if {value} is defined else raise_exception())"

    def _Filter(self, node: Any) -> str:  # noqa: N802
        name = node.name
        if node.node is None or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError(f"|{name} is not translated here")
        arguments = [self.write(argument) for argument in node.args]
        arguments += [f"{keyword.key}={self.write(keyword.value)}" for keyword in node.kwargs]
        if name in ("tojson", "string"):
            return self._serialized(node, arguments)
        if name in rules.PYTHON_FILTERS:
            return f"({self.write(node.node)}|_filter({','.join([quoted(name), *arguments])}))"
        most = 2 if name in ("default", "d") else rules.FILTERS.get(name, -1)
        if node.kwargs or len(arguments) > most:
            raise NotTranslatableError(f"|{name} is not translated")
        if name in ("join", "trim", "replace") and not all(map(is_text, node.args)):
            raise NotTranslatableError(f"|{name} is not translated with an argument that may not be a string")
        if name in ("list", "first", "join"):
            value = self.consumed(node.node)
        else:
            value = self.printed(node.node) if name in ("trim", "replace") else self.write(node.node)
        return f"({value}|{'default' if name == 'd' else name}({','.join(arguments)}))"

    def _serialized(self, node: Any, arguments: list[str]) -> str:
        """`tojson` or `string`, which run in Python and so must be told whether the value is defined."""
        value = self.repeated(node.node, is_printed=True)
        return f"({value}|{node.name}({','.join([f'{value} is defined', *arguments])}))"

    def _Test(self, node: Any) -> str:  # noqa: N802
        name = node.name
        if node.kwargs or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise NotTranslatableError(f"the test {name} is not translated with keywords")
        if name in rules.OTHER_TESTS and not node.args:
            return rules.OTHER_TESTS[name].format(self.repeated(node.node))
        if name == "in" and len(node.args) == 1:
            return self._membership(node.node, node.args[0])
        value, arguments = self.write(node.node), [self.write(argument) for argument in node.args]
        if len(arguments) != rules.TESTS.get(name, -1):
            raise NotTranslatableError(f"the test {name} is not translated")
        if arguments and not name.isalpha():
            return f"({value} {name} {arguments[0]})"
        return f"({value} is {name}{f'({arguments[0]})' if arguments else ''})"


def _are_usual(method: str, arguments: list[Any]) -> bool:
    """Whether a method that both engines have treats these arguments alike in both."""
    if method != "split":
        return all(map(is_text, arguments))
    if not arguments or not is_text(arguments[0]) or not arguments[0].value:
        return False
    return all(type(getattr(argument, "value", None)) is int for argument in arguments[1:])


def _is_plain_attribute(node: Any) -> bool:
    """Whether a node names one key: jinja2 splits names at dots, and reads digits as indices."""
    if not is_text(node):
        return False
    name = node.value
    return name.isidentifier() and not name.startswith("_") and name not in rules.PYTHON_ATTRIBUTES
