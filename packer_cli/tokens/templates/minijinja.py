"""Runs a chat template in minijinja, several times as fast as in jinja2.

::

    template -> jinja2's syntax tree -> translate.py -> minijinja's source -> text and rounds; None leaves it to jinja2
                                        rules.py: what means the same in both engines

minijinja differs from jinja2 in many details. A template that may mean something else to it is refused on loading, or
fails on rendering; either way, jinja2 takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jinja2 import nodes
from jinja2.filters import FILTERS as STRING_FILTERS
from minijinja import Environment, TemplateError

from packer_cli.tokens.templates.conversation import Chat, Span, is_safe_text
from packer_cli.tokens.templates.rounds import Place, marked_tree, split
from packer_cli.tokens.templates.rules import NotTranslatableError
from packer_cli.tokens.templates.template import CompiledTemplate, sandbox
from packer_cli.tokens.templates.translate import minijinja_source

_FUEL, _FUEL_PER_MESSAGE = 10_000, 1_000
"""Instructions that minijinja may spend on a conversation, besides one per char; beyond that, jinja2 takes over. Real
templates take about 100 a message."""


class MinijinjaTemplate:
    """A template for safe conversations (`Chat.is_safe`).

    Args:
        place: of marks; None: there are none.

    Raises:
        NotTranslatableError: minijinja cannot render the template, or may render it differently.
    """

    def __init__(self, template: CompiledTemplate, place: Place | None):
        _check_literals(template)
        self._environment = Environment(keep_trailing_newline=True)
        for name, function in FILTERS.items():
            self._environment.add_filter(name, function)
        functions = {
            "raise_exception": _raise,
            "strftime_now": sandbox().globals["strftime_now"],
            **template.functions,
        }
        for name, value in (functions | template.context()).items():
            self._environment.add_global(name, value)
        try:
            self._environment.add_template("main", minijinja_source(_tree(template, place)))
        except TemplateError as error:
            raise NotTranslatableError(str(error)) from None

    def rounds(self, chat: Chat) -> tuple[str, list[Span]] | None:
        """Return the text and the char ranges of the assistant's rounds, in order.

        Marks of `anywhere` may change the text. None as for `render`.

        None as for `render`.
        """
        return split(text) if (text := self.render(chat)) is not None else None

    def render(self, chat: Chat, **changes: Any) -> str | None:
        """Render the text, with marks.

        None if the render fails or takes too many steps: jinja2 can do it, or tells why not.

        Args:
            changes: other values of the template's variables.
        """
        environment, values = self._environment, {"messages": chat.messages, "tools": chat.tools, **changes}
        environment.fuel = _FUEL + _FUEL_PER_MESSAGE * len(chat.messages) + len(chat.text)
        try:
            return str(environment.render_template("main", **values))
        except BaseException as error:  # TemplateError, an error of a filter, or a lone surrogate.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            return None


def _tree(template: CompiledTemplate, place: Place | None) -> Any:
    """Return the template's syntax tree, with marks unless `place` is None, and without `{% generation %}` tags."""
    tree: Any = template.environment.parse(template.source)
    if place is not None:
        tree = marked_tree(template, place)
    elif template.has_generation_tags:
        tree = marked_tree(template, "generation", mark="")
    if tree is None:
        raise NotTranslatableError("a generation tag is inside a macro or a block")
    return tree


def _check_literals(template: CompiledTemplate) -> None:
    tree = template.environment.parse(template.source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    if not all(map(is_safe_text, (*texts, *map(str, template.variables.values())))):
        raise NotTranslatableError("the template holds control characters or a lone surrogate")


def _tojson(value: Any, is_defined: bool, *arguments: Any, **keywords: Any) -> str:
    """Write JSON as transformers' filter does."""
    if not is_defined:
        raise TypeError("undefined")
    return str(sandbox().filters["tojson"](value, *arguments, **keywords))


def _text(value: Any, is_defined: bool) -> str:
    return str(value) if is_defined else ""


def _method(value: Any, name: str, *arguments: Any) -> Any:
    """Call a method of those listed in `rules`."""
    if type(value) is not (dict if name == "get" else str) or None in arguments:  # None may be undefined.
        raise TypeError("a method of another type, or undefined")
    return getattr(value, name)(*arguments)


def _item(value: Any, key: str) -> Any:
    """Return the value of a key that is also the name of a method."""
    if type(value) is not dict:
        raise TypeError("not a dict")
    return value[key]


def _slice(value: Any, start: Any, stop: Any, step: Any, kinds: tuple[type, ...] = (str, list)) -> Any:
    """Slice a value; minijinja also slices undefined and none, and panics when it reverses an empty list."""
    if type(value) not in kinds:
        raise TypeError("not of a kind that is sliced alike")
    return value[start:stop:step]


def _contains(container: Any, item: Any) -> bool:
    """Return whether an item is inside; minijinja's own `in` also finds a number's digits in a string, and methods."""
    if item is None:
        raise TypeError("none or undefined")
    return item in container


def _filter(value: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
    """Apply one of jinja2's filters on strings."""
    if type(value) is not str:
        raise TypeError("not a string")
    return STRING_FILTERS[name](value, *arguments, **keywords)


def _raise(message: Any = None) -> Any:
    raise ValueError(message)


FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": _tojson,
    "string": _text,
    "_method": _method,
    "_item": _item,
    "_slice": _slice,
    "_list_slice": partial(_slice, kinds=(list,)),  # To loop over: minijinja does not iterate over a string's chars.
    "_contains": _contains,
    "_filter": _filter,
}
