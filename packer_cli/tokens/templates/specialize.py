"""Partial evaluation of a template's syntax tree for plain conversations, whose messages have only role and content.

Most conversations are plain, and most of what a template does is ask whether they are: is there a tool, is the
content a list, is there reasoning? Since the answers are known in advance, these branches are removed, which halves
the time of a render. What is left does the same, step by step.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple, cast

_SIMPLE_FILTERS = frozenset(("length", "count"))


def specialize(tree: Any, constants: dict[str, Any], functions: Collection[str]) -> None:
    """Specialize a jinja2.nodes.Template in place.

    Args:
        constants: variables other than `messages`, with values that are the same for every conversation.
        functions: names of globals.
    """
    from jinja2 import nodes

    stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    stored |= {node.name for node in tree.find_all(nodes.Macro)}
    names = {node.name for node in tree.find_all(nodes.Name)}
    env = dict.fromkeys(names - stored - set(functions) - {"messages", "loop", "self", "caller"}, UNDEFINED)
    env.update((name, Known("constant", value)) for name, value in constants.items())
    _Specializer(tree, set() if "messages" in stored else {"messages"}).body(tree.body, env)


class _Specializer:
    def __init__(self, tree: Any, lists: set[str]):
        """`lists`: names of the list of messages; names that are only ever set to a slice of it are added."""
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

    def body(self, body: list[Any], env: Env) -> None:
        """Specialize statements in place; afterwards, `env` is what is known after them."""
        from jinja2 import nodes

        position = 0
        while position < len(body):
            node = body[position]
            replacement = [node]
            if isinstance(node, nodes.Output):
                node.nodes = [leaf for child in node.nodes for leaf in summands(simplify(child, env), env)]
            elif isinstance(node, nodes.Assign):
                node.node = simplify(node.node, env)
                self._set(node.target, known_value(node.node, env), env)
            elif isinstance(node, nodes.If):
                replacement = self._if(node, env)
            elif isinstance(node, nodes.For):
                node.iter = simplify(node.iter, env)
                # A variable set in one round is undefined in the next one and after the loop.
                inner = dict(env)
                self._set(node.target, MESSAGE if self._is_list(node.iter) else None, inner)
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

    def _round(self, loop: Any, env: Env) -> None:
        """Specialize the body of a loop. If it begins with a test for the assistant, as marked loops do, the rest
        is written twice: for the assistant, and for others."""
        from jinja2 import nodes

        if not loop.body:
            return
        first, *rest = loop.body
        name = loop.target.name if isinstance(loop.target, nodes.Name) else ""
        is_assistant = nodes.Compare(
            nodes.Getattr(nodes.Name(name, "load"), "role", "load"), [nodes.Operand("eq", nodes.Const("assistant"))]
        )
        if isinstance(first, nodes.If) and first.test == is_assistant and env.get(name) == MESSAGE:
            other = copy.deepcopy(rest, {id(self._tree.environment): self._tree.environment})
            for body, more, role in ((first.body, rest, "assistant"), (first.else_, other, NOT_ASSISTANT)):
                body += more
                self.body(body, {**env, name: Known("message", role)})
            loop.body = [first]
        else:
            self.body(loop.body, env)

    def _set(self, target: Any, known: Known | None, env: Env) -> None:
        from jinja2 import nodes

        if isinstance(target, nodes.Name):
            env.pop(target.name, None)
            if known is not None:
                env[target.name] = known
        elif isinstance(target, nodes.Tuple):
            for item in target.items:
                self._set(item, None, env)

    def _if(self, node: Any, env: Env) -> list[Any]:
        """The statements that replace an If."""
        from jinja2 import nodes

        branches: list[tuple[Any, list[Any]]] = [(node.test, node.body), *((n.test, n.body) for n in node.elif_)]
        left: list[tuple[Any, list[Any]]] = []
        otherwise = node.else_
        for test, body in branches:
            test = simplify(test, env, as_test=True)
            truth = truth_of(test, env)
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
        env.update(common_values(outcomes))
        if not left:
            return list(otherwise)
        (test, body), *others = left
        elifs = [nodes.If(t, b, [], [], lineno=node.lineno) for t, b in others]
        return [nodes.If(test, body, elifs, otherwise, lineno=node.lineno)]

    def _sink(self, body: list[Any]) -> None:
        """Move an assignment that only the body of the next `if` needs into it, since most rounds skip that."""
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
        """Whether an expression only counts messages and rounds, and so cannot fail."""
        from jinja2 import nodes

        if isinstance(node, (nodes.Add, nodes.Sub)):
            return self._is_simple(node.left) and self._is_simple(node.right)
        if isinstance(node, nodes.Filter):
            return node.name in _SIMPLE_FILTERS and not node.args and self._is_list(node.node)
        if isinstance(node, nodes.Getattr):
            return isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr in ("index", "index0")
        return isinstance(node, nodes.Const) and type(node.value) is int


def _end_early(loop: Any) -> None:
    """End a loop early that does nothing after clearing a flag, such as one that looks for the last question."""
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


def _count(tree: Any, name: str) -> int:
    """How often a name occurs in a tree."""
    from jinja2 import nodes

    return sum(node.name == name for node in tree.find_all(nodes.Name)) + (
        isinstance(tree, nodes.Name) and tree.name == name
    )


_STRING_METHODS = frozenset(("strip", "lstrip", "rstrip", "replace"))
_STRING_FILTERS = frozenset(("trim", "upper", "lower", "replace"))


class Known(NamedTuple):
    """All that is known about a value."""

    kind: Literal["constant", "string", "undefined", "message"]
    value: Any = None

    @property
    def truth(self) -> bool | None:
        """Whether it is true; None if unknown."""
        return bool(self.value) if self.kind == "constant" else False if self.kind == "undefined" else None

    @property
    def is_string(self) -> bool:
        """Whether it is known to be a string."""
        return self.kind == "string" or isinstance(self.value, str)


STRING, UNDEFINED, MESSAGE = Known("string"), Known("undefined"), Known("message")
NOT_ASSISTANT = object()
"""The value of a message whose role is known not to be `assistant`."""
Env = dict[str, Known]
"""What is known about variables."""


def simplify(node: Any, env: Env, *, as_test: bool = False) -> Any:
    """The expression without its decided parts; for a test, one with the same truth value."""
    from jinja2 import nodes

    if isinstance(node, nodes.CondExpr):
        test = simplify(node.test, env, as_test=True)
        truth = truth_of(test, env)
        if truth is not None and (truth or node.expr2 is not None):
            return simplify(node.expr1 if truth else node.expr2, env, as_test=as_test)
    elif isinstance(node, (nodes.And, nodes.Or)):
        is_and = isinstance(node, nodes.And)
        left, right = (simplify(side, env, as_test=as_test) for side in (node.left, node.right))
        truth = truth_of(left, env)
        if truth is not None:
            return right if truth == is_and else left
        if as_test and truth_of(right, env) == is_and:
            return left
        return type(node)(left, right, lineno=node.lineno)
    elif isinstance(node, nodes.Not):
        inner = simplify(node.node, env, as_test=True)
        truth = truth_of(inner, env)
        return nodes.Not(inner, lineno=node.lineno) if truth is None else nodes.Const(not truth)
    return node


def truth_of(node: Any, env: Env) -> bool | None:
    """Whether an expression is true; None if unknown."""
    known = known_value(node, env)
    return None if known is None else known.truth


def known_value(node: Any, env: Env) -> Known | None:
    """What is known about an expression's value; None if nothing is."""
    from jinja2 import nodes

    if isinstance(node, nodes.Const):
        return Known("constant", node.value)
    if isinstance(node, nodes.Name):
        return env.get(node.name)
    is_string = False
    if isinstance(node, nodes.Concat):
        is_string = True
    elif isinstance(node, nodes.Add):
        is_string = _is_string(node.left, env) and _is_string(node.right, env)
    elif isinstance(node, nodes.Filter) and node.node is not None:
        is_string = node.name in _STRING_FILTERS and _is_string(node.node, env)
    elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
        is_string = node.node.attr in _STRING_METHODS and _is_string(node.node.node, env)
    elif isinstance(node, nodes.Test):
        return _test(node, env)
    elif isinstance(node, nodes.Getitem) and _is_split(node.node):
        at_end = isinstance(node.arg, nodes.Neg) and getattr(node.arg.node, "value", None) == 1
        at_start = isinstance(node.arg, nodes.Const) and type(node.arg.value) is int and node.arg.value == 0
        is_string = (at_start or at_end) and _is_string(cast("Any", node.node).node.node, env)
    elif isinstance(node, nodes.Compare):
        return _comparison(node, env)
    elif isinstance(node, (nodes.Getattr, nodes.Getitem)):
        key, message = _key(node), known_value(node.node, env)
        if key is None or message is None or message.kind != "message":
            return None
        if key == "role" and isinstance(message.value, str):
            return Known("constant", message.value)
        is_string = key in ("role", "content")
        if not is_string and not hasattr(dict, key):
            return UNDEFINED
    return STRING if is_string else None


def _comparison(node: Any, env: Env) -> Known | None:
    """The result of comparing a role with a constant."""
    from jinja2 import nodes

    if len(node.ops) != 1 or node.ops[0].op not in ("eq", "ne") or _key(node.expr) != "role":
        return None
    message, value = known_value(node.expr.node, env), node.ops[0].expr
    if message is None or message.kind != "message" or not isinstance(value, nodes.Const):
        return None
    if isinstance(message.value, str):
        return Known("constant", (message.value == value.value) == (node.ops[0].op == "eq"))
    if message.value is NOT_ASSISTANT and value.value == "assistant":
        return Known("constant", node.ops[0].op == "ne")
    return None


def _is_string(node: Any, env: Env) -> bool:
    known = known_value(node, env)
    return known is not None and known.is_string


def _test(node: Any, env: Env) -> Known | None:
    known = known_value(node.node, env)
    if known is None or node.args or node.kwargs:
        return None
    answers = {
        "string": known.is_string,
        "defined": known != UNDEFINED,
        "undefined": known == UNDEFINED,
        "none": known.kind == "constant" and known.value is None,
        "mapping": known.kind == "message",
    }
    return Known("constant", answers[node.name]) if node.name in answers else None


def summands(node: Any, env: Env) -> list[Any]:
    """The summands of a sum of strings, which can be written one by one; otherwise the expression itself."""
    from jinja2 import nodes

    if isinstance(node, nodes.Add) and _is_string(node, env):
        return summands(node.left, env) + summands(node.right, env)
    known = known_value(node, env)
    if known is not None and known.kind == "constant" and isinstance(known.value, str):
        return [nodes.Const(known.value)]
    return [node]


def common_values(outcomes: list[Env]) -> Iterator[tuple[str, Known]]:
    """What is known after a statement with these branches, whichever was taken."""
    for name, known in outcomes[0].items():
        others = [outcome.get(name) for outcome in outcomes]
        if all(other == known for other in others):
            yield name, known
        elif all(other is not None and other.is_string for other in others):
            yield name, STRING


def _is_split(node: Any) -> bool:
    """Whether a call splits a string at a separator, which returns at least one part."""
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
