"""Writes a chat template's syntax tree as source for minijinja.

jinja2 has parsed the template and so has applied whitespace control: every literal is written as it is, or as a
string, and no blank is between two tags. Every operation is in parentheses, so precedence is that of jinja2's parser.
A template of which any part may mean something else to minijinja is refused, and stays with jinja2. Only methods that
read a dict may reach the Python objects behind the values: minijinja would also call `messages.append`.
"""

from __future__ import annotations

import json
from typing import Any

from jinja2 import nodes

from packer_cli.tokens.templates import rules
from packer_cli.tokens.templates.rules import NotTranslatableError, OwnLists


def minijinja_source(tree: Any) -> str:
    """Write source that renders the same text as the tree, in an environment that trims nothing.

    Args:
        tree: jinja2.nodes.Template without `{% generation %}` blocks (see `marks`).

    Raises:
        NotTranslatableError: some of it may mean something else to minijinja.
    """
    writer = _Writer(tree)
    writer.check(tree)
    return writer.body(tree.body)


class _Writer:
    """Writes the nodes of one template (jinja2.nodes.Template). The method `_X` writes a node of class `X`.

    Each operation is in parentheses.
    """

    def __init__(self, tree: Any):
        macros = list(tree.find_all(nodes.Macro))
        self._macros = {macro.name for macro in macros}
        self._macros_with_defaults = {macro.name for macro in macros if macro.defaults}
        self._stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
        self._namespaces = {node.name for node in tree.find_all(nodes.NSRef)}
        for node in tree.find_all(nodes.Assign):
            if isinstance(node.node, nodes.Call) and getattr(node.node.node, "name", "") == "namespace":
                self._namespaces.add(getattr(node.target, "name", ""))
        self._own_lists = OwnLists(tree)

    def check(self, tree: Any) -> None:
        """Refuse differences that only show in the template as a whole."""
        if self._stored & (self._macros | rules.FUNCTIONS | rules.OTHER_GLOBALS | {"loop"}):
            raise NotTranslatableError("a variable hides a function")
        # In jinja2, macros see later values of the variables around them; in minijinja, those at their definition.
        for macro in tree.find_all(nodes.Macro):
            read = {node.name for node in macro.find_all(nodes.Name) if node.ctx == "load"}
            read -= {argument.name for argument in macro.args}
            inside = set(map(id, macro.find_all(nodes.Assign)))
            for node in tree.find_all(nodes.Assign):
                names = {name.name for name in nodes.List([node.target]).find_all(nodes.Name)}
                if node.lineno >= macro.lineno and names & read and id(node) not in inside:
                    raise NotTranslatableError("a macro reads a variable that is set after it")

    def write(self, node: Any) -> str:
        """Write the source of a node.

        Raises:
            NotTranslatableError: it may mean something else to minijinja.
        """
        write = getattr(self, f"_{type(node).__name__}", None)
        if write is None:
            raise NotTranslatableError(f"{type(node).__name__} is not translated")
        _refuse_stars(node)
        return str(write(node))

    def printed(self, node: Any) -> str:
        """Write the source of an expression that becomes text."""
        if self._own_lists.may_hold(node):
            raise NotTranslatableError("the template prints a list or dict of its own")
        return self.write(node)

    def repeated(self, node: Any, *, is_printed: bool = False) -> str:
        """Write the source of an expression that is written more than once."""
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
        owner = node.node.name if isinstance(node.node, nodes.Name) else ""
        if owner == "loop":
            if node.attr not in rules.LOOP_ATTRIBUTES:
                raise NotTranslatableError(f"loop.{node.attr} is not translated")
        elif owner not in self._namespaces and node.attr in rules.PYTHON_ATTRIBUTES:
            raise NotTranslatableError(f".{node.attr} is a method")
        return f"{self._owner(node.node)}.{attribute(node.attr)}"

    def _owner(self, node: Any) -> str:
        """Write the source of an expression whose attribute is read."""
        is_namespace = isinstance(node, nodes.Name) and node.name in self._namespaces
        return str(node.name) if is_namespace else self.write(node)

    def _Getitem(self, node: Any) -> str:  # noqa: N802
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
        """Write a bound of a slice. Unless it is a number, rendering fails: Python cannot tell undefined from none."""
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
        one, many = self.write(item), self.write(container)
        is_usual = rules.is_text(item) and item.value not in rules.PYTHON_ATTRIBUTES
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

    def _binary(self, node: Any) -> str:
        return f"({self.write(node.left)} {rules.OPERATORS[type(node).__name__]} {self.write(node.right)})"

    _Add = _Sub = _FloorDiv = _Mod = _And = _Or = _binary

    # Calls, filters and tests

    def consumed(self, node: Any) -> str:
        """Write the source of an expression whose items are all consumed at once."""
        if isinstance(node, nodes.Filter) and node.name in rules.LAZY_FILTERS and node.node is not None:
            return self._lazy(node)
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
        _refuse_stars(node)
        value, arguments = self.consumed(node.node), [self.write(argument) for argument in node.args]
        if node.name == "map":
            if arguments or [keyword.key for keyword in node.kwargs] != ["attribute"]:
                raise NotTranslatableError("|map is not translated except for an attribute")
            attribute = node.kwargs[0].value
            if not rules.is_plain_attribute(attribute):
                raise NotTranslatableError("|map is not translated for this attribute")
            return f"({value}|map(attribute={self.write(attribute)}))"
        if node.kwargs:
            raise NotTranslatableError(f"|{node.name} is not translated with keywords")
        tests = node.args
        if node.name.endswith("attr"):
            if not tests or not rules.is_plain_attribute(tests[0]):
                raise NotTranslatableError(f"|{node.name} is not translated for this attribute")
            tests = tests[1:]
        if tests and getattr(tests[0], "value", None) not in rules.LAZY_TESTS:
            raise NotTranslatableError(f"|{node.name} is not translated with this test")
        return f"({value}|{node.name}({','.join(arguments)}))"

    def _Call(self, node: Any) -> str:  # noqa: N802
        called = node.node
        if isinstance(called, nodes.Name) and called.name in self._macros | rules.FUNCTIONS:
            write = self._defined if called.name in self._macros_with_defaults else self.write
            arguments = [write(argument) for argument in node.args]
            arguments += [f"{keyword.key}={write(keyword.value)}" for keyword in node.kwargs]
            return f"{called.name}({','.join(arguments)})"
        if not isinstance(called, nodes.Getattr) or node.kwargs:
            raise NotTranslatableError("a call is not translated")
        name, value, arguments = called.attr, self.write(called.node), [self.write(item) for item in node.args]
        if name in rules.PYTHON_METHODS or (name in rules.METHODS and not rules.are_usual(name, node.args)):
            return f"({value}|_method({','.join([quoted(name), *arguments])}))"
        if len(arguments) <= rules.METHODS.get(name, -1):
            return f"{value}.{name}({','.join(arguments)})"
        raise NotTranslatableError(f"a call of {name} is not translated")

    def _defined(self, node: Any) -> str:
        """Write an argument of a macro; for an undefined one, minijinja would use the default."""
        if isinstance(node, nodes.Const):
            return self.write(node)
        value = self.repeated(node)
        return f"({value} if {value} is defined else raise_exception())"

    def _Filter(self, node: Any) -> str:  # noqa: N802
        name = node.name
        if node.node is None:
            raise NotTranslatableError(f"|{name} is not translated as a block")
        arguments = [self.write(argument) for argument in node.args]
        arguments += [f"{keyword.key}={self.write(keyword.value)}" for keyword in node.kwargs]
        if name in ("tojson", "string"):  # They run in Python, and must be told whether the value is defined.
            value = self.repeated(node.node, is_printed=True)
            return f"({value}|{name}({','.join([f'{value} is defined', *arguments])}))"
        if name in rules.PYTHON_FILTERS:
            return f"({self.write(node.node)}|_filter({','.join([quoted(name), *arguments])}))"
        most = 2 if name in ("default", "d") else rules.FILTERS.get(name, -1)
        if node.kwargs or len(arguments) > most:
            raise NotTranslatableError(f"|{name} is not translated")
        if name in ("join", "trim", "replace") and not all(map(rules.is_text, node.args)):
            raise NotTranslatableError(f"|{name} is not translated with an argument that may not be a string")
        if name in ("list", "first", "join"):
            value = self.consumed(node.node)
        else:
            value = self.printed(node.node) if name in ("trim", "replace") else self.write(node.node)
        return f"({value}|{'default' if name == 'd' else name}({','.join(arguments)}))"

    def _Test(self, node: Any) -> str:  # noqa: N802
        name = node.name
        if node.args or node.kwargs:
            raise NotTranslatableError(f"the test {name} is not translated with arguments")
        if name in rules.OTHER_TESTS:
            return rules.OTHER_TESTS[name].format(self.repeated(node.node))
        if name not in rules.TESTS:
            raise NotTranslatableError(f"the test {name} is not translated")
        return f"({self.write(node.node)} is {name})"

    # Statements

    def body(self, body: list[Any]) -> str:
        """Write the source of statements."""
        return "".join(map(self.write, body))

    def _Output(self, node: Any) -> str:  # noqa: N802
        return "".join(map(self._output, node.nodes))

    def _output(self, node: Any) -> str:
        text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
        if isinstance(node, (nodes.TemplateData, nodes.Const)) and isinstance(text, str) and "{" not in text:
            return text
        return f"{{{{{self.printed(node)}}}}}"

    def _For(self, node: Any) -> str:  # noqa: N802
        if node.recursive or node.else_:
            raise NotTranslatableError("recursive loops, and those with an else, are not translated")
        test = ""
        if node.test is not None:
            # jinja2 evaluates the filter before each round, minijinja all of it before the first.
            if any(name.name in self._namespaces for name in nodes.Output([node.test]).find_all(nodes.Name)):
                raise NotTranslatableError("the filter of a loop reads what the loop may set")
            test = f" if {self.write(node.test)}"
        head = f"{{%for {self._target(node.target)} in {self.consumed(node.iter)}{test}%}}"
        return f"{head}{self.body(node.body)}{{%endfor%}}"

    def _If(self, node: Any) -> str:  # noqa: N802
        text = f"{{%if {self.write(node.test)}%}}{self.body(node.body)}"
        for branch in node.elif_:
            text += f"{{%elif {self.write(branch.test)}%}}{self.body(branch.body)}"
        return text + (f"{{%else%}}{self.body(node.else_)}" if node.else_ else "") + "{%endif%}"

    def _Assign(self, node: Any) -> str:  # noqa: N802
        return f"{{%set {self._target(node.target)}={self.write(node.node)}%}}"

    def _Macro(self, node: Any) -> str:  # noqa: N802
        names = [argument.name for argument in node.args]
        defaults = [""] * (len(names) - len(node.defaults)) + [f"={self.write(value)}" for value in node.defaults]
        arguments = ",".join(name + default for name, default in zip(names, defaults, strict=True))
        return f"{{%macro {node.name}({arguments})%}}{self.body(node.body)}{{%endmacro%}}"

    def _Scope(self, node: Any) -> str:  # noqa: N802
        return f"{{%with%}}{self.body(node.body)}{{%endwith%}}"

    def _Break(self, _: Any) -> str:  # noqa: N802
        return "{%break%}"

    def _Continue(self, _: Any) -> str:  # noqa: N802
        return "{%continue%}"

    def _target(self, node: Any) -> str:
        if isinstance(node, nodes.NSRef):
            return f"{node.name}.{attribute(node.attr)}"
        if isinstance(node, nodes.Tuple):
            return f"({','.join(map(self._target, node.items))},)"
        assert isinstance(node, nodes.Name)
        return str(node.name)


def _refuse_stars(node: Any) -> None:
    """Raise NotTranslatableError for a call, filter or test with `*` or `**`."""
    if getattr(node, "dyn_args", None) is not None or getattr(node, "dyn_kwargs", None) is not None:
        raise NotTranslatableError("calls with * or ** are not translated")


def quoted(text: str) -> str:
    """Quote a string literal for minijinja."""
    return json.dumps(text, ensure_ascii=False)


def attribute(name: str) -> str:
    """Return the name of an attribute, if minijinja may look the attribute up."""
    if name.startswith("_") or not name.isascii():
        raise NotTranslatableError("names with a leading underscore are not translated")
    return name
