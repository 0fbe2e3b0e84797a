"""Partial evaluation of a template's expressions: what is known about their values in plain conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast

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
