"""Runs a chat template in minijinja, several times as fast as in jinja2."""

from __future__ import annotations

from typing import Any, Self

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.conversation import Chat, is_safe_text
from packer_cli.tokens.templates.limits import FUEL, FUEL_PER_MESSAGE
from packer_cli.tokens.templates.marks import CHARS, Place, marked_tree, split_chars
from packer_cli.tokens.templates.minijinja.functions import FILTERS, GLOBALS
from packer_cli.tokens.templates.minijinja.rules import NotTranslatableError
from packer_cli.tokens.templates.minijinja.source import minijinja_source
from packer_cli.tokens.templates.specialize import specialize
from packer_cli.tokens.templates.types import Span


class MinijinjaTemplate:
    """A template for safe conversations (`Chat.is_safe`).

    Raises:
        NotTranslatableError: minijinja cannot render the template, or may render it differently.
    """

    def __init__(self, template: CompiledTemplate, place: Place | None):
        from minijinja import Environment, TemplateError

        self._environment = Environment(keep_trailing_newline=True)
        for name, function in FILTERS.items():
            self._environment.add_filter(name, function)
        self._constants = template.context()
        for name, value in (GLOBALS | self._constants).items():
            self._environment.add_global(name, value)
        self._is_marked = place is not None
        self._is_compared = place == "anywhere"
        _check_literals(template)
        try:
            self._add("main", template, place)
            if self._is_compared:
                self._add("text", template, None)
        except TemplateError as error:
            raise NotTranslatableError(str(error)) from None

    def _add(self, name: str, template: CompiledTemplate, place: Place | None) -> None:
        """Add two templates: one for all conversations, and one for plain ones (`Chat.is_plain`)."""
        for is_plain in (False, True):
            tree = _tree(template, place)
            if is_plain:
                specialize(tree, {**self._constants, "tools": None}, template.environment.globals)
            self._environment.add_template(f"plain {name}" if is_plain else name, minijinja_source(tree))

    @classmethod
    def of(cls, template: CompiledTemplate, place: Place | None) -> Self | None:
        """The template, with marks unless `place` is None; None if it cannot be translated."""
        try:
            return cls(template, place)
        except NotTranslatableError:
            return None

    def rounds(self, chat: Chat) -> tuple[str, list[Span]] | None:
        """The text and the char ranges of the assistant's rounds, in order; no ranges without marks.

        None if the render fails or takes too many steps: jinja2 can do it, or tells why not.
        """
        environment, messages, tools = self._environment, chat.messages, chat.tools
        environment.fuel = FUEL + FUEL_PER_MESSAGE * len(messages) + len(chat.text)
        names = ("plain main", "plain text") if chat.is_plain else ("main", "text")
        try:
            text = environment.render_template(names[0], messages=messages, tools=tools)
            if not self._is_marked:
                return text, []
            found = split_chars(text)
            if self._is_compared and found[0] != environment.render_template(names[1], messages=messages, tools=tools):
                return None
            return found
        except Exception:
            # TemplateError, an error of a filter, or a lone surrogate.
            return None
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            return None


def _tree(template: CompiledTemplate, place: Place | None) -> Any:
    """The template's syntax tree, with marks unless `place` is None, and without `{% generation %}` tags."""
    tree: Any = template.environment.parse(template.source)
    if place is not None:
        tree = marked_tree(template, place, CHARS)
    elif template.has_generation_tags:
        tree = marked_tree(template, "generation", dict.fromkeys(CHARS, ""))
    if tree is None:
        raise NotTranslatableError("a generation tag is inside a macro or a block")
    return tree


def _check_literals(template: CompiledTemplate) -> None:
    from jinja2 import nodes

    tree = template.environment.parse(template.source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    if not all(map(is_safe_text, (*texts, *map(str, template.variables.values())))):
        raise NotTranslatableError("the template holds control characters or a lone surrogate")
