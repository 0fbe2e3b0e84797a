"""Marks in a template's syntax tree: one render gives the text and the place of each message in it.

Extra output nodes mark where each round of a loop over the messages begins, and where the loop ends, so that the text
between two marks is exactly the output of one round. In the same way, the tags `{% generation %}` and
`{% endgeneration %}` become marks. There are three ways to recognize a mark:

- jinja2 streams the output of a loop that is not inside a macro, a call, a filter or a `set` block straight
  to the reader, string by string. There, a mark is recognized by its identity, and no content can forge one.
- minijinja returns one string. There, a mark is a control character, and a conversation that contains such a
  character goes to jinja2 (`Chat.is_safe`).
- In a macro or a `set` block, a mark is such a character, too, but the template may cut, strip or count the text that
  contains it. So the text without the marks must equal that of a render without marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import CodeType
from typing import Any, Literal, Self

from packer_cli.tokens.templates.compiled import CompiledTemplate, is_generation
from packer_cli.tokens.templates.limits import limited
from packer_cli.tokens.templates.types import Span, cannot_render

Place = Literal["generation", "stream", "anywhere"]
"""What to mark: generation tags; loops that write straight to the stream; or loops in macros and blocks as well."""

_DEPTHS = 2
"""Levels of nested loops to mark (`for turn in turns: for message in turn`)."""
_KEYS = [(letter, depth) for depth in range(_DEPTHS) for letter in "AO"]
"""A: the assistant's part begins; O: another's part begins, or the loop ends."""
MARKS = {key: f"\0hbpack {key[0]}{key[1]}\0" for key in _KEYS}
CHARS = dict(zip(_KEYS, "\x01\x02\x03\x04", strict=True))
_KEY_OF_CHAR = {char: key for key, char in CHARS.items()}
_ANY_CHAR = re.compile(f"([{''.join(CHARS.values())}])")


class MarkedTemplate:
    """A template with marks, run by jinja2."""

    def __init__(self, template: CompiledTemplate, tree: Any, place: Place):
        from jinja2 import Template

        environment = template.environment
        # Keep the code: marks are recognized by the ids of its constants.
        self._code = environment.compile(tree)
        self._codes = find_marks(self._code)
        self._template = Template.from_code(environment, self._code, environment.make_globals(None))
        self._plain = template if place == "anywhere" else None

    @classmethod
    def of(cls, template: CompiledTemplate, place: Place) -> Self | None:
        """The template with marks; None if there is nothing to mark."""
        tree = marked_tree(template, place, CHARS if place == "anywhere" else MARKS)
        return None if tree is None else cls(template, tree, place)

    def rounds(self, context: dict[str, Any], *, is_safe: bool) -> tuple[str, list[Span]] | None:
        """The text and the char ranges of the assistant's rounds, in order; None if marks cannot be told from text.

        Args:
            is_safe: `Chat.is_safe`.

        Raises:
            TemplateRejectError: the template raised.
        """
        template = self._template
        try:
            blocks = limited(lambda: list(template.root_render_func(template.new_context(context))))
        except Exception as error:
            raise cannot_render(error) from None
        if self._plain is None:
            return split(blocks, map(self._codes.get, map(id, blocks)))
        if not is_safe:
            return None
        found = split_chars("".join(blocks))
        return found if found[0] == self._plain.text(context) else None


def marked_tree(template: CompiledTemplate, place: Place, marks: dict[tuple[str, int], str]) -> Any | None:
    """The template's syntax tree with marks; None if there is nothing to mark."""
    tree = template.environment.parse(template.source)
    return tree if _Marker(marks, place).mark(tree) else None


def find_marks(code: CodeType) -> dict[int, tuple[str, int]]:
    """Maps the id of each mark among the constants of a compiled template to its letter and depth.

    Valid as long as the code exists. Equal strings from elsewhere have other ids, since such constants are not
    interned.
    """
    keys = {mark: key for key, mark in MARKS.items()}
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(find_marks(constant))
        elif isinstance(constant, str) and constant in keys:
            found[id(constant)] = keys[constant]
    return found


class _Marker:
    """Puts marks into a syntax tree."""

    def __init__(self, marks: dict[tuple[str, int], str], place: Place):
        self._marks = marks
        self._place = place

    def mark(self, tree: Any) -> bool:
        """Mark a jinja2.nodes.Template in place; returns False if it has nothing to mark or cannot be fully marked."""
        from jinja2 import nodes

        tags = sum(map(is_generation, tree.find_all(nodes.CallBlock)))
        if self._place == "generation":
            return tags > 0 and self._body(tree.body, 0) == tags
        return tags == 0 and self._body(tree.body, 0) > 0

    def _body(self, body: list[Any], depth: int) -> int:
        """Mark statements in place; returns the number of marked loops or tags."""
        from jinja2 import nodes

        scopes = (nodes.With, nodes.Scope)
        captures = (*scopes, nodes.Macro, nodes.AssignBlock)
        found = 0
        position = 0
        while position < len(body):
            node = body[position]
            if isinstance(node, nodes.For):
                names = _target_names(node.target)
                if self._place != "generation" and depth < _DEPTHS and self._is_wanted(node, names):
                    found += 1 + self._body(node.body, depth + 1)
                    node.body.insert(0, self._round_mark(names, depth, node.lineno))
                    body.insert(position + 1, self._output("O", depth, node.lineno))
                    position += 1
                else:
                    found += self._body(node.body, depth)
                found += self._body(node.else_, depth)
            elif isinstance(node, nodes.If):
                found += self._body(node.body, depth) + self._body(node.else_, depth)
                # The tests of `elif` branches are nodes of their own.
                found += sum(self._body(branch.body, depth) for branch in node.elif_)
            elif isinstance(node, captures if self._place == "anywhere" else scopes):
                found += self._body(node.body, depth)
            elif isinstance(node, nodes.CallBlock) and self._place == "generation" and is_generation(node):
                inner = nodes.Scope(node.body, lineno=node.lineno)
                begin, end = (self._output(letter, 0, node.lineno) for letter in "AO")
                body[position : position + 1] = [begin, inner, end]
                position += 2
                found += 1
            position += 1
        return found

    def _is_wanted(self, loop: Any, names: list[str]) -> bool:
        """Whether a loop may be the one over the messages. In a stream, needless marks do no harm; elsewhere, marks in
        a loop over the parts of a message would end its round, so only loops that read roles are marked."""
        from jinja2 import nodes

        if not names:
            return False
        if self._place == "stream":
            return loop.find(nodes.Output) is not None
        reads = [node.node for node in loop.find_all(nodes.Getattr) if node.attr == "role"]
        reads += [node.node for node in loop.find_all(nodes.Getitem) if getattr(node.arg, "value", None) == "role"]
        reads += [argument for call in loop.find_all(nodes.Call) for argument in call.args]
        return any(isinstance(node, nodes.Name) and node.name in names for node in reads)

    def _output(self, letter: str, depth: int, lineno: int) -> Any:
        from jinja2 import nodes

        return nodes.Output([nodes.TemplateData(self._marks[letter, depth])], lineno=lineno)

    def _round_mark(self, names: list[str], depth: int, lineno: int) -> Any:
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
        yes, no = (self._output(letter, depth, lineno) for letter in "AO")
        return nodes.If(test, [yes], [], [no], lineno=lineno)


def _target_names(target: Any) -> list[str]:
    from jinja2 import nodes

    if isinstance(target, nodes.Name):
        return [target.name]
    if isinstance(target, nodes.Tuple):
        return [item.name for item in target.items if isinstance(item, nodes.Name)]
    return []


def split(blocks: list[str], keys: Iterable[tuple[str, int] | None]) -> tuple[str, list[Span]]:
    """The text without the marks, and the char ranges of the assistant's rounds, in order.

    A round inside another assistant round (a loop over its parts) is part of the outer one.

    Args:
        keys: letter and depth of each block that is a mark, None for text.
    """
    pieces: list[str] = []
    spans: list[Span] = []
    open_at: list[int | None] = [None] * _DEPTHS
    position = 0
    for block, key in zip(blocks, keys, strict=True):
        if key is None:
            pieces.append(block)
            position += len(block)
            continue
        letter, depth = key
        for level in range(depth, _DEPTHS):
            start = open_at[level]
            if start is not None:
                # Only the outermost: it includes the ranges inside it.
                if position > start and all(open_at[above] is None for above in range(level)):
                    spans.append((start, position))
                open_at[level] = None
        if letter == "A":
            open_at[depth] = position
    return "".join(pieces), spans


def split_chars(text: str) -> tuple[str, list[Span]]:
    """`split` for marks that are characters."""
    begin, end = CHARS["A", 0], CHARS["O", 0]
    spans: list[Span] = []
    position = 0
    pieces = text.split(end)
    for piece in pieces:
        at = piece.find(begin)
        if at < 0:
            position += len(piece)
        else:
            start = position + at
            position += len(piece) - 1
            if position > start:
                spans.append((start, position))
    whole = "".join(pieces).replace(begin, "")
    if position == len(whole) and CHARS["A", 1] not in text and CHARS["O", 1] not in text:
        return whole, spans
    # Two assistant rounds follow each other, or loops are nested.
    pieces = _ANY_CHAR.split(text)
    return split(pieces, map(_KEY_OF_CHAR.get, pieces))
