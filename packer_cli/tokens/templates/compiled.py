"""A chat template, compiled by jinja2: a conversation's text, and the ranges inside `{% generation %}` tags."""

from __future__ import annotations

from typing import Any

from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.conversation import PROBES, Chat, read_chat
from packer_cli.tokens.templates.limits import TemplateLimitError, limited
from packer_cli.tokens.templates.sandbox import make_environment
from packer_cli.tokens.templates.types import Rendered, Span, TemplateRejectError, cannot_render, one_line


class CompiledTemplate:
    """A compiled template.

    Args:
        source: Jinja.
        variables: values that transformers passes to every template (`special_tokens_map`).
        fast: use the shortcuts of `sandbox`; otherwise transformers' own sandbox.

    Raises:
        TokenizerError: the template is not valid Jinja, or takes too long to compile.
    """

    def __init__(self, source: str, variables: dict[str, str], *, fast: bool):
        from jinja2 import TemplateError, nodes

        self.source = source
        self.variables = variables
        try:
            self.environment = make_environment(fast=fast)
            tree = self.environment.parse(source)
            self._template = limited(lambda: self.environment.from_string(source))
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise TokenizerError(
                f"the chat template is not valid Jinja ({one_line(error)}); give another with --chat-template FILE"
            ) from None
        except TemplateLimitError:
            raise TokenizerError(
                "the chat template takes too long to compile; give another with --chat-template FILE"
            ) from None
        self._names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
        self.has_generation_tags = any(is_generation(node) for node in tree.find_all(nodes.CallBlock))

    def reads(self, name: str) -> bool:
        """Whether the source reads a variable of this name."""
        return name in self._names

    def context(self, chat: Chat | None = None) -> dict[str, Any]:
        """The template's variables for a conversation; without one, those that never change."""
        own = {} if chat is None else {"messages": chat.messages, "tools": chat.tools}
        return {
            **own,
            "documents": None,
            "add_generation_prompt": False,
            **self.variables,
        }

    def text(self, context: dict[str, Any], **changes: Any) -> str:
        """The text for a context from `context`, with some variables changed.

        Raises:
            TemplateRejectError: the template raised.
        """
        template = self._template
        try:
            return limited(lambda: "".join(template.root_render_func(template.new_context({**context, **changes}))))
        except Exception as error:
            raise cannot_render(error) from None

    def text_and_generation(self, context: dict[str, Any]) -> Rendered:
        """The text and the ranges inside `{% generation %}` tags. Quadratic in the number of tags.

        Raises:
            TemplateRejectError: the template raised.
        """
        template = self._template
        blocks: list[str] = []
        spans: list[Span] = []

        def render() -> None:
            with self.environment.activate_tracker(blocks, spans):
                for block in template.root_render_func(template.new_context(context)):
                    blocks.append(block)

        try:
            limited(render)
        except Exception as error:
            raise cannot_render(error) from None
        # Drop empty blocks: transformers would mark the token at their position.
        return Rendered("".join(blocks), sorted(span for span in spans if span[1] > span[0]))

    def generation_prompt(self) -> str:
        """The text that `add_generation_prompt=True` adds after a user message; may be empty."""
        for messages in (PROBES[0][:1], PROBES[0]):
            try:
                context = self.context(read_chat(messages))
                plain, prompted = self.text(context), self.text(context, add_generation_prompt=True)
            except TemplateRejectError:
                continue
            # Some templates end a conversation with EOS unless an answer is to follow.
            for so_far in (plain, plain.removesuffix(self.variables.get("eos_token", ""))):
                if prompted.startswith(so_far):
                    return prompted[len(so_far) :]
        return ""


def is_generation(node: Any) -> bool:
    """Whether a call block comes from a `{% generation %}` tag."""
    return getattr(node.call.node, "name", "") == "_generation_support"
