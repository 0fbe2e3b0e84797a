"""Marks in a template's syntax tree: one render gives the text and where each message's part lies.

jinja streams the output of a loop that is not inside a macro, a call, a filter or a `set` block straight
to the reader, piece by piece. So a loop can be made to say when each of its rounds begins, and when the
loop is over, by extra output nodes; the pieces between two marks are exactly what one round wrote. The
marks are recognized by identity, never by their text, so no content can forge one.

Price: two comparisons more for each round; the text is not scanned.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Self

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.types import Span, cannot_render

_DEPTHS = 2
"""Marked loops may be nested this deep (`for turn in turns: for message in turn`)."""


_MARKS = {(letter, depth): f"\0hbpack {letter}{depth}\0" for depth in range(_DEPTHS) for letter in "AOE"}
"""A: a round for an assistant message begins, O: another round begins, E: the loop ends."""


class MarkedTemplate:
    """A template whose loops say where their rounds begin."""

    def __init__(self, environment: Any, tree: Any):
        from jinja2 import Template

        # Kept: the ids of its constants tell the marks.
        self._code = environment.compile(tree)
        self._codes = find_marks(self._code)
        self._template = Template.from_code(environment, self._code, environment.make_globals(None))

    @classmethod
    def of(cls, template: CompiledTemplate) -> Self | None:
        """The template with marks; None where no loop can have them."""
        tree = template.environment.parse(template.source)
        return cls(template.environment, tree) if instrument(tree) else None

    def rounds(self, context: dict[str, Any]) -> tuple[str, list[Span]]:
        """The text, and the char ranges that the assistant messages wrote, in order.

        Raises: TemplateRejectError for whatever the template raises.
        """
        template = self._template
        try:
            return split(list(template.root_render_func(template.new_context(context))), self._codes)
        except Exception as error:
            raise cannot_render(error) from None


def find_marks(code: CodeType) -> dict[int, tuple[str, int]]:
    """id of each mark among the constants of a compiled template -> its letter and depth.

    Valid as long as the code lives. Equal strings from elsewhere are other objects: such constants are not
    interned.
    """
    keys = {mark: key for key, mark in _MARKS.items()}
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(find_marks(constant))
        elif isinstance(constant, str) and constant in keys:
            found[id(constant)] = keys[constant]
    return found


def instrument(tree: Any) -> int:
    """Put marks into every loop of the tree that writes straight to the stream; how many loops got them.

    tree: jinja2.nodes.Template, changed in place.
    """
    return _walk_body(tree.body, 0)


def _walk_body(body: list[Any], depth: int) -> int:
    from jinja2 import nodes

    found = 0
    position = 0
    while position < len(body):
        node = body[position]
        if isinstance(node, nodes.For):
            names = _target_names(node.target)
            if names and depth < _DEPTHS and node.find(nodes.Output) is not None:
                found += 1 + _walk_body(node.body, depth + 1)
                node.body.insert(0, _round_mark(names, depth, node.lineno))
                body.insert(position + 1, _output(_MARKS["E", depth], node.lineno))
                position += 1
            else:
                found += _walk_body(node.body, depth)
            found += _walk_body(node.else_, depth)
        elif isinstance(node, nodes.If):
            found += _walk_body(node.body, depth) + _walk_body(node.else_, depth)
            # The tests of `elif` branches are nodes of their own.
            found += sum(_walk_body(branch.body, depth) for branch in node.elif_)
        elif isinstance(node, (nodes.With, nodes.Scope)):
            found += _walk_body(node.body, depth)
        position += 1
    return found


def _target_names(target: Any) -> list[str]:
    from jinja2 import nodes

    if isinstance(target, nodes.Name):
        return [target.name]
    if isinstance(target, nodes.Tuple):
        return [item.name for item in target.items if isinstance(item, nodes.Name)]
    return []


def _output(mark: str, lineno: int) -> Any:
    from jinja2 import nodes

    return nodes.Output([nodes.TemplateData(mark)], lineno=lineno)


def _round_mark(names: list[str], depth: int, lineno: int) -> Any:
    from jinja2 import nodes

    tests: list[Any] = [
        nodes.Compare(
            nodes.Getattr(nodes.Name(name, "load"), "role", "load"),
            [nodes.Operand("eq", nodes.Const("assistant"))],
        )
        for name in names
    ]
    test = tests[0]
    for other in tests[1:]:
        test = nodes.Or(test, other)
    yes, no = _output(_MARKS["A", depth], lineno), _output(_MARKS["O", depth], lineno)
    return nodes.If(test, [yes], [], [no], lineno=lineno)


def split(blocks: list[str], codes: dict[int, tuple[str, int]]) -> tuple[str, list[Span]]:
    """The text without the marks, and the char ranges of the rounds for assistant messages, in order.

    codes: from `find_marks`.

    A round inside another assistant round (a loop over its parts) is part of the outer one.
    """
    pieces: list[str] = []
    spans: list[Span] = []
    open_at: list[int | None] = [None] * _DEPTHS
    position = 0
    for block in blocks:
        code = codes.get(id(block))
        if code is None:
            pieces.append(block)
            position += len(block)
            continue
        letter, depth = code
        for level in range(depth, _DEPTHS):
            start = open_at[level]
            if start is not None:
                # Only outermost: an open range above this one will take it in.
                if position > start and all(open_at[above] is None for above in range(level)):
                    spans.append((start, position))
                open_at[level] = None
        if letter == "A":
            open_at[depth] = position
    return "".join(pieces), spans
