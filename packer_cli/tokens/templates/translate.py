"""Writes a chat template's syntax tree as source for minijinja.

jinja2 has parsed the template and so has applied whitespace control: every literal is written as it is, or as a
string, and no blank is between two tags. Every operation is in parentheses, so precedence is that of jinja2's parser.
A template of which any part may mean something else to minijinja is refused, and stays with jinja2. Only methods that
read a dict may reach the Python objects behind the values: minijinja would also call `messages.append`.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes

from packer_cli.tokens.templates import rules
from packer_cli.tokens.templates.expressions import Expressions, attribute
from packer_cli.tokens.templates.rules import NotTranslatableError


def minijinja_source(tree: Any) -> str:
    """Source that renders the same text as the tree, in an environment that trims nothing.

    Args:
        tree: jinja2.nodes.Template without `{% generation %}` blocks (see `marks`).

    Raises:
        NotTranslatableError: some of it may mean something else to minijinja.
    """
    for loop in tree.find_all(nodes.For):
        if rules.ends_with_flag(loop):
            loop.body[-1].body.append(nodes.Break())
    writer = _Writer(tree)
    writer.check(tree)
    return writer.body(tree.body)


class _Writer(Expressions):
    """Writes statements, too."""

    def check(self, tree: Any) -> None:
        """Refuse differences that only show in the template as a whole."""
        if self._stored & (self._macros | rules.FUNCTIONS | rules.OTHER_GLOBALS | {"loop"}):
            raise NotTranslatableError("a variable hides a function")
        # In jinja2, macros see later values of the variables around them; in minijinja, those at their definition.
        for macro in tree.find_all(nodes.Macro):
            read = {node.name for node in macro.find_all(nodes.Name) if node.ctx == "load"}
            read -= {argument.name for argument in macro.args}
            inside = set(map(id, macro.find_all((nodes.Assign, nodes.AssignBlock))))
            for node in tree.find_all((nodes.Assign, nodes.AssignBlock)):
                names = {name.name for name in nodes.List([node.target]).find_all(nodes.Name)}
                if node.lineno >= macro.lineno and names & read and id(node) not in inside:
                    raise NotTranslatableError("a macro reads a variable that is set after it")

    def body(self, body: list[Any]) -> str:
        """The source of statements."""
        return "".join(map(self.write, body))

    def _scoped(self, body: list[Any]) -> str:
        """The source of statements whose variables go out of scope after them in jinja2, but not in minijinja."""
        sets = any(nodes.Scope(body).find_all((nodes.Assign, nodes.AssignBlock)))
        return f"{{%with%}}{self.body(body)}{{%endwith%}}" if sets else self.body(body)

    def _Output(self, node: Any) -> str:  # noqa: N802
        return "".join(map(self._output, node.nodes))

    def _output(self, node: Any) -> str:
        text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
        if isinstance(node, (nodes.TemplateData, nodes.Const)) and isinstance(text, str) and "{" not in text:
            return text
        return f"{{{{{self.printed(node)}}}}}"

    def _For(self, node: Any) -> str:  # noqa: N802
        if node.recursive:
            raise NotTranslatableError("recursive loops are not translated")
        if node.else_ and any(nodes.Scope(node.body).find_all((nodes.Break, nodes.Continue))):
            raise NotTranslatableError("jinja2 also runs the else of a loop if no round reaches its end")
        test = ""
        if node.test is not None:
            # jinja2 evaluates the filter before each round, minijinja all of it before the first.
            if any(name.name in self._namespaces for name in nodes.Output([node.test]).find_all(nodes.Name)):
                raise NotTranslatableError("the filter of a loop reads what the loop may set")
            test = f" if {self.write(node.test)}"
        otherwise = f"{{%else%}}{self._scoped(node.else_)}" if node.else_ else ""
        head = f"{{%for {self._target(node.target)} in {self.consumed(node.iter)}{test}%}}"
        return f"{head}{self.body(node.body)}{otherwise}{{%endfor%}}"

    def _If(self, node: Any) -> str:  # noqa: N802
        text = f"{{%if {self.write(node.test)}%}}{self.body(node.body)}"
        for branch in node.elif_:
            text += f"{{%elif {self.write(branch.test)}%}}{self.body(branch.body)}"
        return text + (f"{{%else%}}{self.body(node.else_)}" if node.else_ else "") + "{%endif%}"

    def _Assign(self, node: Any) -> str:  # noqa: N802
        return f"{{%set {self._target(node.target)}={self.write(node.node)}%}}"

    def _AssignBlock(self, node: Any) -> str:  # noqa: N802
        if node.filter is not None:
            raise NotTranslatableError("set blocks with a filter are not translated")
        if any(node.find_all((nodes.Break, nodes.Continue))):
            raise NotTranslatableError("a set block that a loop may leave is not translated")
        return f"{{%set {self._target(node.target)}%}}{self._scoped(node.body)}{{%endset%}}"

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
