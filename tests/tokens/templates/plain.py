"""A chat template as transformers alone renders it."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]


class TemplateError(Exception):
    """The template cannot render a conversation."""


class Plain:
    """A template; the variables are those of the tokenizer."""

    def __init__(self, template: str, **variables: str):
        self.template = template
        self._variables = variables

    def render(self, messages: list[Message], tools: list[Any] | None = None, *, prompted: bool = False) -> str:
        """The text.

        Raises:
            TemplateError: transformers raised.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        # As `apply_chat_template`; a copy, because templates may change what they are given.
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        given = json.loads(json.dumps([present, tools]))
        try:
            (text,), _ = render_jinja_template(
                given[:1],
                tools=given[1],
                chat_template=self.template,
                add_generation_prompt=prompted,
                **self._variables,
            )
        except Exception as error:
            raise TemplateError(" ".join(str(error).split()) or type(error).__name__) from None
        return str(text)
