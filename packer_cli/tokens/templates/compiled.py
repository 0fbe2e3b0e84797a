"""A chat template, compiled: the text of a conversation, and the ranges that `{% generation %}` tags give."""

from __future__ import annotations

from typing import Any

from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.conversation import PROBES, template_context
from packer_cli.tokens.templates.sandbox import make_environment
from packer_cli.tokens.templates.types import Rendered, Span, TemplateRejectError, cannot_render, one_line


class CompiledTemplate:
    """Jinja source, ready to render.

    Args:
        source: of the template.
        variables: what transformers hands to every template (`special_tokens_map`).
        fast: the shortcuts of `sandbox`; without them transformers' own sandbox runs.

    Raises: TokenizerError where the template is not valid Jinja.
    """

    def __init__(self, source: str, variables: dict[str, str], *, fast: bool):
        from jinja2 import TemplateError, nodes

        self.source = source
        self.variables = variables
        try:
            self.environment = make_environment(source, fast=fast)
            tree = self.environment.parse(source)
        except TemplateError as error:
            raise TokenizerError(
                f"the chat template is not valid Jinja ({one_line(error)}); give another with --chat-template FILE"
            ) from None
        self._template = self.environment.from_string(source)
        self.has_generation_tags = any(
            getattr(node.call.node, "name", "") == "_generation_support" for node in tree.find_all(nodes.CallBlock)
        )

    def context(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> dict[str, Any]:
        """The template's variables for a conversation, see `template_context`."""
        return template_context(messages, tools, self.variables)

    def text(self, context: dict[str, Any], **changes: Any) -> str:
        """Text for a context that `context` made, with some variables changed.

        Raises: TemplateRejectError for whatever the template raises.
        """
        template = self._template
        try:
            return "".join(template.root_render_func(template.new_context({**context, **changes})))
        except Exception as error:
            raise cannot_render(error) from None

    def text_and_generation(self, context: dict[str, Any]) -> Rendered:
        """Text, and the ranges inside `{% generation %}` tags.

        Raises: as `text`.
        """
        template = self._template
        blocks: list[str] = []
        spans: list[Span] = []
        try:
            with self.environment.activate_tracker(blocks, spans):
                for block in template.root_render_func(template.new_context(context)):
                    blocks.append(block)
        except Exception as error:
            raise cannot_render(error) from None
        # An empty block generates nothing; transformers would mark the token that its position falls into.
        return Rendered("".join(blocks), sorted(span for span in spans if span[1] > span[0]))

    def generation_prompt(self) -> str:
        """What `add_generation_prompt=True` adds after a user message; empty if nothing."""
        for messages in (PROBES[0][:1], PROBES[0]):
            try:
                context = self.context(messages)
                plain, prompted = self.text(context), self.text(context, add_generation_prompt=True)
            except TemplateRejectError:
                continue
            if prompted.startswith(plain):
                return prompted[len(plain) :]
        return ""
