"""Finds expressions that may be lists or dicts made by the template itself.

The engines print the lists and dicts of a conversation alike, but not these.
"""

from __future__ import annotations

from typing import Any

from packer_cli.tokens.templates.minijinja.rules import LISTING_FILTERS, LISTING_METHODS


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
        from jinja2 import nodes

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
    """(name, expression) of all assignments and arguments."""
    from jinja2 import nodes

    for node in tree.find_all(nodes.Assign):
        yield _name(node.target), node.node
    for node in tree.find_all(nodes.With):
        yield from zip(map(_name, node.targets), node.values, strict=True)
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
