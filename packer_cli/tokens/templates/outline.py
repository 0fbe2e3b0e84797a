"""Outlines: the text of plain conversations of one shape, without their contents.

A template renders once texts that stand for the contents (`_Text`). What it writes around them is the same for all
conversations that it cannot tell apart, and it can only by the strings that it looks for in contents. These are noted;
a conversation that holds one of them is rendered. A template that does anything else with a content has no outlines.

Price: 0.5 us a message, and 5 ms for each shape; a chat of eight messages is rendered in 25 to 60 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial, wraps
from itertools import accumulate, chain
from typing import Any, NamedTuple, NoReturn

from jinja2 import nodes
from jinja2.nativetypes import NativeCodeGenerator

from packer_cli.tokens.templates.conversation import Chat, Rendered, TemplateRejectError
from packer_cli.tokens.templates.template import CompiledTemplate, render, sandbox

Strips = tuple[tuple[str, str | None], ...]
"""Methods of strings, and the white space that each removes; None: all."""
_CHANGING = frozenset(("lipsum", "random", "strftime_now"))
"""Functions and filters whose result is another in each render."""


class Outline(NamedTuple):
    """The text of plain conversations of one shape, without their contents."""

    parts: tuple[str, ...]
    """Before, between and behind the contents."""
    strips: tuple[Strips, ...]
    """The strips of each content."""
    needles: frozenset[str]
    """Strings that the template looks for in contents."""
    ranges: tuple[tuple[int, int, int], ...]
    """Ranges of the assistant: twice the index of the message, and the chars before and behind its content."""
    notes: Sequence[str]
    """See `Rendered`."""

    def fill(self, chat: Chat) -> Rendered | None:
        """Put a conversation's contents in, and find its ranges; None if the template may treat it in another way."""
        for needle in self.needles:
            if needle in chat.text:
                return None
        pieces = [""] * (2 * len(chat.contents) + 1)
        pieces[::2] = self.parts
        pieces[1::2] = map(_stripped, chat.contents, self.strips)
        ends = list(accumulate(map(len, pieces)))
        spans = [(ends[at] - before, ends[at + 1] + behind) for at, before, behind in self.ranges]
        return Rendered("".join(pieces), spans, self.notes)


def _stripped(content: str, strips: Strips) -> str:
    for method, chars in strips:
        content = getattr(content, method)(chars)
    return content


class Outlines:
    """Makes the outlines of one template."""

    def __init__(self, template: CompiledTemplate):
        self._template = template

    def of(self, chat: Chat, rendered: Rendered, notes: Sequence[str], edges: Iterable[str]) -> Outline | None:
        """Take the contents, each a word of its own, out of a conversation; None if the template may treat others in
        another way, if not all are written in order, or if a range ends with one, where there may be white space.

        Args:
            edges: strings by which ranges are found; a conversation whose contents hold one is rendered, too.
        """
        pieces = self._pieces(chat)
        contents: list[_Content] = pieces[1::2]
        if [each.number for each in contents] != list(range(len(chat.contents))):
            return None
        pieces[1::2] = chat.contents
        ends = list(accumulate(map(len, pieces)))
        answers = [2 * index for index, turn in enumerate(chat.shape[1:]) if turn == "assistant"]
        needles = contents[0].needles.union(filter(None, map(str.strip, edges)))
        if any(needle in chat.text for needle in needles):
            return None
        if "".join(pieces) != rendered.text or len(rendered.spans) not in (0, len(answers)):
            return None
        said = zip(answers, rendered.spans, strict=False)
        ranges = tuple((at, ends[at] - start, stop - ends[at + 1]) for at, (start, stop) in said)
        starts = ends[2:-1:2]
        if any(stop <= at and not rendered.text[stop:at].strip() for _, stop in rendered.spans for at in starts):
            return None
        if not all(behind for _, _, behind in ranges):
            return None
        strips = tuple(each.strips for each in contents)
        return Outline(tuple(pieces[::2]), strips, frozenset(needles), ranges, notes)

    def _pieces(self, chat: Chat) -> list[Any]:
        """Render a conversation with `_Text` for its contents: strings, with contents between; empty if it cannot."""
        if self._compiled is None:
            return []
        needles: set[str] = set()
        texts = {word: _Text([_Content(number, needles)]) for number, word in enumerate(chat.contents)}
        context = self._template.context(chat._replace(messages=_hidden(chat.messages, texts)))
        try:
            text: Any = render(self._compiled, context)
        except TemplateRejectError:
            return []
        return text.pieces if isinstance(text, _Text) else [text]

    @cached_property
    def _compiled(self) -> Any:
        """The jinja2.Template; None where not every render is the same."""
        template = self._template
        tree = _environment().parse(template.source)
        if tree.find(nodes.EvalContextModifier):
            return None
        used = {node.name for node in tree.find_all((nodes.Name, nodes.Filter))}
        if used & _CHANGING - template.functions.keys():
            return None
        return _environment().from_string(template.source, globals=template.functions)


class _Content(NamedTuple):
    """The content of a message in a text."""

    number: int
    needles: set[str]
    """Strings that no content has, to which are added those that are looked for."""
    strips: Strips = ()


class _UnknownError(Exception):
    """The template may depend on contents in a way that is not followed."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise _UnknownError


class _Text:
    """A text with contents of which only is known that they are not blank, and hold none of `needles`.

    It is no string, so what takes one raises an error rather than treat it as some text.
    """

    def __init__(self, pieces: Iterable[str | _Content]):
        self.pieces: list[Any] = [""]
        """Strings at even places, contents at odd ones."""
        for piece in pieces:
            if isinstance(piece, str):
                self.pieces[-1] += piece
            else:
                self.pieces += [piece, ""]

    def _content(self) -> _Content:
        """Return the content; what is done to one with texts around it is not followed."""
        before, *content, behind = self.pieces
        if before or behind or len(content) != 1:
            raise _UnknownError
        return content[0]  # type: ignore[no-any-return]

    def has(self, needle: Any) -> bool:
        """Note that the needle is looked for, and not there. It is not white space, which may be anywhere."""
        if type(needle) is not str or not needle.strip():
            raise _UnknownError
        self._content().needles.add(needle)
        return False

    def split(self, needle: Any, *_: Any) -> list[_Text]:
        """Split at a needle."""
        return [self, *[self] * self.has(needle)]

    def replace(self, needle: Any, *_: Any) -> _Text:
        """Replace a needle."""
        return _refuse() if self.has(needle) else self

    def strip(self, chars: Any = None, *, method: str = "strip") -> _Text:
        """Strip white space."""
        if chars is not None and (type(chars) is not str or chars.strip()):
            raise _UnknownError
        content = self._content()
        return _Text([content._replace(strips=(*content.strips, (method, chars)))])

    def __add__(self, other: Any) -> Any:
        return _joined((self, other)) if type(other) in (str, _Text) else _refuse()

    def __radd__(self, other: Any) -> Any:
        return _joined((other, self)) if type(other) is str else _refuse()

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) and not other.strip():
            return False
        return self is other or self.has(other)

    __contains__ = has
    __getitem__ = __hash__ = __str__ = __repr__ = _refuse


def _joined(texts: Iterable[Any]) -> Any:
    """Join what a template writes, or puts together with `~`."""
    found = list(texts)
    if not any(isinstance(text, _Text) for text in found):
        return "".join(map(str, found))
    return _Text(chain.from_iterable(text.pieces if isinstance(text, _Text) else [str(text)] for text in found))


class _Length:
    """The length of such a text, which is not 0."""

    def __gt__(self, other: object) -> bool:
        return True if other == 0 else _refuse()

    __eq__ = __bool__ = __hash__ = __str__ = __repr__ = _refuse


class _Message(dict[str, Any]):
    """A message, whose keys may stand in any order."""

    __iter__ = __reversed__ = keys = values = items = copy = _refuse


def _hidden(value: Any, texts: Mapping[str, _Text]) -> Any:
    """Put texts in place of the words that stand for them."""
    if isinstance(value, list):
        return [_hidden(item, texts) for item in value]
    if isinstance(value, dict):
        return _Message({key: _hidden(item, texts) for key, item in value.items()})
    return texts.get(value, value) if isinstance(value, str) else value


class _Generator(NativeCodeGenerator):
    """Leaves what is written as it is, until it is joined."""

    def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802 - jinja's name
        self.write("environment.concat((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")


_METHODS: dict[str, Callable[..., Any]] = {
    **{name: partial(_Text.strip, method=name) for name in ("strip", "lstrip", "rstrip")},
    **dict.fromkeys(("startswith", "endswith"), _Text.has),
    "split": _Text.split,
    "replace": _Text.replace,
}
_FILTERS: dict[str, Callable[..., Any]] = {
    "trim": _Text.strip,
    "string": lambda text: text,
    "length": lambda _: _Length(),
}
_COMPARING = frozenset(("default", "d", "eq", "==", "equalto", "ne", "!=", "in"))
"""Filters and tests that do no more than compare."""
_OF_TYPES = ("string", "defined", "undefined", "none", "mapping", "sequence", "iterable", "number", "boolean")
"""Tests that find the same for every string."""


@lru_cache(maxsize=1)
def _environment() -> Any:
    """Make an environment in which templates render such texts."""
    environment = sandbox().overlay()
    look_up, get_item = environment.getattr, environment.getitem

    def find_method(owner: Any, name: str) -> Any:
        if isinstance(owner, _Length) or (isinstance(owner, _Text) and name not in _METHODS):
            raise _UnknownError
        return partial(_METHODS[name], owner) if isinstance(owner, _Text) else look_up(owner, name)

    def find_item(owner: Any, key: Any) -> Any:
        return (
            _refuse()
            if isinstance(owner, (_Text, _Length)) or isinstance(key, (_Text, _Length))
            else get_item(owner, key)
        )

    tests = environment.tests
    environment.code_generator_class = _Generator
    environment.concat = _joined
    environment.getattr, environment.getitem = find_method, find_item
    environment.filters = _followed(environment.filters, _FILTERS)
    environment.tests = _followed(tests, {name: lambda _, test=tests[name]: test("text") for name in _OF_TYPES})
    return environment


def _followed(functions: Mapping[str, Callable[..., Any]], own: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Make filters or tests refuse such texts, but for those that are known to treat all alike."""

    def follow(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def followed(*arguments: Any, **keywords: Any) -> Any:
            is_text = any(isinstance(each, _Text) for each in (*arguments, *keywords.values()))
            if name not in _COMPARING and any(isinstance(each, _Length) for each in (*arguments, *keywords.values())):
                raise _UnknownError
            known = own.get(name, _refuse) if is_text and name not in _COMPARING else function
            return known(*arguments, **keywords)

        return followed

    return {name: follow(name, function) for name, function in functions.items()}
