"""A template's syntax tree for plain conversations, whose messages are a role and a content and nothing else.

Most conversations are plain, and most of what a template does is to ask whether they are: is there a tool, is the
content a list, is there reasoning? With the answers known beforehand, those branches go; half of the time of a
render goes with them. What is left does the same, step by step.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple, cast

_STRING_METHODS = frozenset(("strip", "lstrip", "rstrip", "replace"))
_STRING_FILTERS = frozenset(("trim", "upper", "lower", "replace"))
_SIMPLE_FILTERS = frozenset(("length", "count"))


class _Known(NamedTuple):
    """All we know about a value."""

    kind: Literal["constant", "string", "undefined", "message"]
    value: Any = None

    @property
    def truth(self) -> bool | None:
        """Whether it is true, if known."""
        return bool(self.value) if self.kind == "constant" else False if self.kind == "undefined" else None

    @property
    def is_string(self) -> bool:
        """Whether it is known to be a string."""
        return self.kind == "string" or isinstance(self.value, str)


_STRING, _UNDEFINED, _MESSAGE = _Known("string"), _Known("undefined"), _Known("message")
_NOT_ASSISTANT = object()
_Env = dict[str, _Known]


def specialize(tree: Any, constants: dict[str, Any], functions: Collection[str]) -> None:
    """Change jinja2.nodes.Template in place.

    constants: variables other than `messages`, which every conversation has alike. functions: names that are globals.
    """
    from jinja2 import nodes

    stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    stored |= {node.name for node in tree.find_all(nodes.Macro)}
    names = {node.name for node in tree.find_all(nodes.Name)}
    env = dict.fromkeys(names - stored - set(functions) - {"messages", "loop", "self", "caller"}, _UNDEFINED)
    env.update((name, _Known("constant", value)) for name, value in constants.items())
    _Specializer(tree, set() if "messages" in stored else {"messages"}).body(tree.body, env)


class _Specializer:
    def __init__(self, tree: Any, lists: set[str]):
        """lists: names that stand for the messages; grows by those that stand for a slice, wherever they are set."""
        from jinja2 import nodes

        self._tree = tree
        self._lists = lists
        values: dict[str, list[Any]] = {}
        for node in tree.find_all(nodes.Assign):
            if isinstance(node.target, nodes.Name):
                values.setdefault(node.target.name, []).append(node.node)
        stores = Counter(name.name for name in tree.find_all(nodes.Name) if name.ctx != "load")
        for name, given in values.items():
            if stores[name] == len(given) and all(map(self._is_list, given)):
                self._lists.add(name)

    def _is_list(self, node: Any) -> bool:
        from jinja2 import nodes

        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self._is_list(node.node)
        return isinstance(node, nodes.Name) and node.name in self._lists

    # Statements

    def body(self, body: list[Any], env: _Env) -> None:
        """Change statements in place; `env` becomes what is known after them."""
        from jinja2 import nodes

        position = 0
        while position < len(body):
            node = body[position]
            replacement = [node]
            if isinstance(node, nodes.Output):
                node.nodes = [leaf for child in node.nodes for leaf in self._leaves(self._expr(child, env), env)]
            elif isinstance(node, nodes.Assign):
                node.node = self._expr(node.node, env)
                self._set(node.target, self._known(node.node, env), env)
            elif isinstance(node, nodes.If):
                replacement = self._if(node, env)
            elif isinstance(node, nodes.For):
                node.iter = self._expr(node.iter, env)
                # What a round sets is gone in the next one and after the loop.
                inner = dict(env)
                self._set(node.target, _MESSAGE if self._is_list(node.iter) else None, inner)
                self._round(node, inner)
                self.body(node.else_, dict(env))
                _end_early(node)
            elif isinstance(node, nodes.Scope):
                self.body(node.body, dict(env))
            elif isinstance(node, nodes.AssignBlock):
                self._set(node.target, None, env)
            body[position : position + 1] = replacement
            position += len(replacement)
        self._sink(body)

    def _round(self, loop: Any, env: _Env) -> None:
        """The body of a loop. Where it begins by asking for the assistant, as marked loops do, all that follows is
        written once for the assistant and once for others."""
        from jinja2 import nodes

        if not loop.body:
            return
        first, *rest = loop.body
        name = loop.target.name if isinstance(loop.target, nodes.Name) else ""
        is_assistant = nodes.Compare(
            nodes.Getattr(nodes.Name(name, "load"), "role", "load"), [nodes.Operand("eq", nodes.Const("assistant"))]
        )
        if isinstance(first, nodes.If) and first.test == is_assistant and env.get(name) == _MESSAGE:
            other = copy.deepcopy(rest, {id(self._tree.environment): self._tree.environment})
            for body, more, role in ((first.body, rest, "assistant"), (first.else_, other, _NOT_ASSISTANT)):
                body += more
                self.body(body, {**env, name: _Known("message", role)})
            loop.body = [first]
        else:
            self.body(loop.body, env)

    def _set(self, target: Any, known: _Known | None, env: _Env) -> None:
        from jinja2 import nodes

        if isinstance(target, nodes.Name):
            env.pop(target.name, None)
            if known is not None:
                env[target.name] = known
        elif isinstance(target, nodes.Tuple):
            for item in target.items:
                self._set(item, None, env)

    def _if(self, node: Any, env: _Env) -> list[Any]:
        """The statements that take the place of an If."""
        from jinja2 import nodes

        branches: list[tuple[Any, list[Any]]] = [(node.test, node.body), *((n.test, n.body) for n in node.elif_)]
        left: list[tuple[Any, list[Any]]] = []
        otherwise = node.else_
        for test, body in branches:
            test = self._expr(test, env, as_test=True)
            truth = self._truth(test, env)
            if truth is None:
                left.append((test, body))
            elif truth:
                otherwise = body
                break
        outcomes = []
        for _, body in [*left, (None, otherwise)]:
            inner = dict(env)
            self.body(body, inner)
            outcomes.append(inner)
        env.clear()
        env.update(_common(outcomes))
        if not left:
            return list(otherwise)
        (test, body), *others = left
        elifs = [nodes.If(t, b, [], [], lineno=node.lineno) for t, b in others]
        return [nodes.If(test, body, elifs, otherwise, lineno=node.lineno)]

    def _sink(self, body: list[Any]) -> None:
        """A number that only the next `if` needs is set in there: most rounds do without."""
        from jinja2 import nodes

        for position in range(len(body) - 2, -1, -1):
            node, after = body[position], body[position + 1]
            if not (
                isinstance(node, nodes.Assign) and isinstance(after, nodes.If) and isinstance(node.target, nodes.Name)
            ):
                continue
            name = node.target.name
            inside = sum(_count(statement, name) for statement in after.body)
            if _count(self._tree, name) == inside + 1 and self._is_simple(node.node):
                after.body.insert(0, node)
                del body[position]

    def _is_simple(self, node: Any) -> bool:
        """Whether an expression does nothing, and cannot fail, beside counting messages and rounds."""
        from jinja2 import nodes

        if isinstance(node, (nodes.Add, nodes.Sub)):
            return self._is_simple(node.left) and self._is_simple(node.right)
        if isinstance(node, nodes.Filter):
            return node.name in _SIMPLE_FILTERS and not node.args and self._is_list(node.node)
        if isinstance(node, nodes.Getattr):
            return isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr in ("index", "index0")
        return isinstance(node, nodes.Const) and type(node.value) is int

    # Expressions

    def _expr(self, node: Any, env: _Env, *, as_test: bool = False) -> Any:
        """The expression without what is decided; for a test, one that is as true."""
        from jinja2 import nodes

        if isinstance(node, nodes.CondExpr):
            test = self._expr(node.test, env, as_test=True)
            truth = self._truth(test, env)
            if truth is not None and (truth or node.expr2 is not None):
                return self._expr(node.expr1 if truth else node.expr2, env, as_test=as_test)
        elif isinstance(node, (nodes.And, nodes.Or)):
            is_and = isinstance(node, nodes.And)
            left, right = (self._expr(side, env, as_test=as_test) for side in (node.left, node.right))
            truth = self._truth(left, env)
            if truth is not None:
                return right if truth == is_and else left
            if as_test and self._truth(right, env) == is_and:
                return left
            return type(node)(left, right, lineno=node.lineno)
        elif isinstance(node, nodes.Not):
            inner = self._expr(node.node, env, as_test=True)
            truth = self._truth(inner, env)
            return nodes.Not(inner, lineno=node.lineno) if truth is None else nodes.Const(not truth)
        return node

    def _truth(self, node: Any, env: _Env) -> bool | None:
        known = self._known(node, env)
        return None if known is None else known.truth

    def _known(self, node: Any, env: _Env) -> _Known | None:
        from jinja2 import nodes

        if isinstance(node, nodes.Const):
            return _Known("constant", node.value)
        if isinstance(node, nodes.Name):
            return env.get(node.name)
        is_string = False
        if isinstance(node, nodes.Concat):
            is_string = True
        elif isinstance(node, nodes.Add):
            is_string = self._is_string(node.left, env) and self._is_string(node.right, env)
        elif isinstance(node, nodes.Filter) and node.node is not None:
            is_string = node.name in _STRING_FILTERS and self._is_string(node.node, env)
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            is_string = node.node.attr in _STRING_METHODS and self._is_string(node.node.node, env)
        elif isinstance(node, nodes.Test):
            return self._test(node, env)
        elif isinstance(node, nodes.Getitem) and _is_split(node.node):
            at_end = isinstance(node.arg, nodes.Neg) and getattr(node.arg.node, "value", None) == 1
            at_start = isinstance(node.arg, nodes.Const) and type(node.arg.value) is int and node.arg.value == 0
            is_string = (at_start or at_end) and self._is_string(cast("Any", node.node).node.node, env)
        elif isinstance(node, nodes.Compare):
            return self._comparison(node, env)
        elif isinstance(node, (nodes.Getattr, nodes.Getitem)):
            key, message = _key(node), self._known(node.node, env)
            if key is None or message is None or message.kind != "message":
                return None
            if key == "role" and isinstance(message.value, str):
                return _Known("constant", message.value)
            is_string = key in ("role", "content")
            if not is_string and not hasattr(dict, key):
                return _UNDEFINED
        return _STRING if is_string else None

    def _comparison(self, node: Any, env: _Env) -> _Known | None:
        """Whether a role is equal to a constant, or not."""
        from jinja2 import nodes

        if len(node.ops) != 1 or node.ops[0].op not in ("eq", "ne") or _key(node.expr) != "role":
            return None
        message, value = self._known(node.expr.node, env), node.ops[0].expr
        if message is None or message.kind != "message" or not isinstance(value, nodes.Const):
            return None
        if isinstance(message.value, str):
            return _Known("constant", (message.value == value.value) == (node.ops[0].op == "eq"))
        if message.value is _NOT_ASSISTANT and value.value == "assistant":
            return _Known("constant", node.ops[0].op == "ne")
        return None

    def _is_string(self, node: Any, env: _Env) -> bool:
        known = self._known(node, env)
        return known is not None and known.is_string

    def _test(self, node: Any, env: _Env) -> _Known | None:
        known = self._known(node.node, env)
        if known is None or node.args or node.kwargs:
            return None
        answers = {
            "string": known.is_string,
            "defined": known != _UNDEFINED,
            "undefined": known == _UNDEFINED,
            "none": known.kind == "constant" and known.value is None,
            "mapping": known.kind == "message",
        }
        return _Known("constant", answers[node.name]) if node.name in answers else None

    def _leaves(self, node: Any, env: _Env) -> list[Any]:
        """The summands of a sum of strings, which may as well be written one by one."""
        from jinja2 import nodes

        if isinstance(node, nodes.Add) and self._is_string(node, env):
            return self._leaves(node.left, env) + self._leaves(node.right, env)
        known = self._known(node, env)
        if known is not None and known.kind == "constant" and isinstance(known.value, str):
            return [nodes.Const(known.value)]
        return [node]


def _end_early(loop: Any) -> None:
    """End a loop that does nothing more once it has lowered a flag, as those that look for the last question."""
    from jinja2 import nodes

    if len(loop.body) != 1 or not isinstance(loop.body[0], nodes.If) or loop.test is not None or loop.else_:
        return
    (only,) = loop.body
    flag = only.test
    while isinstance(flag, nodes.And):
        flag = flag.left
    if only.elif_ or only.else_ or not isinstance(flag, nodes.Getattr) or not isinstance(flag.node, nodes.Name):
        return
    target = nodes.NSRef(flag.node.name, flag.attr)
    assigned = [node for node in only.find_all((nodes.Assign, nodes.AssignBlock)) if node.target == target]
    calls_macro = any(isinstance(call.node, nodes.Name) for call in only.find_all(nodes.Call))
    lowers = [nodes.Assign(target, nodes.Const(False))]
    if assigned == lowers and assigned[0] in only.body and not calls_macro:
        only.body.append(nodes.Break())


def _common(outcomes: list[_Env]) -> Iterator[tuple[str, _Known]]:
    """What is known after either of several branches."""
    for name, known in outcomes[0].items():
        others = [outcome.get(name) for outcome in outcomes]
        if all(other == known for other in others):
            yield name, known
        elif all(other is not None and other.is_string for other in others):
            yield name, _STRING


def _is_split(node: Any) -> bool:
    """Whether a call takes a string apart, into one part at least."""
    from jinja2 import nodes

    is_call = isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr == "split"
    return is_call and len(node.args) == 1 and not node.kwargs


def _key(node: Any) -> str | None:
    from jinja2 import nodes

    if isinstance(node, nodes.Getattr):
        return str(node.attr)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return str(node.arg.value)
    return None


def _count(tree: Any, name: str) -> int:
    """How often a name stands in a tree."""
    from jinja2 import nodes

    return sum(node.name == name for node in tree.find_all(nodes.Name)) + (
        isinstance(tree, nodes.Name) and tree.name == name
    )
