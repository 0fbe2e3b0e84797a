"""The tokenizer that the workers' server loads, so that each is forked with it; named in its environment."""

from __future__ import annotations

import json
import os

_VARIABLE = "HBPACK_TOKENIZER"


def settings_for(tokenizer: str, chat_template: str | None) -> dict[str, str]:
    """The environment variables that make a server load this tokenizer."""
    return {_VARIABLE: json.dumps([tokenizer, chat_template])}


def named_tokenizer() -> tuple[str, str | None] | None:
    """The tokenizer and the chat template that this process is to load, if any."""
    value = os.environ.get(_VARIABLE)
    return None if value is None else tuple(json.loads(value))
