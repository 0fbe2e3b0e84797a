"""The tokenizer that the workers' server loads, so that each worker is forked with it; named in its environment."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packer_cli.config import TokenizeConfig

_VARIABLE = "HBPACK_TOKENIZER"


class NamedTokenizer(NamedTuple):
    """A tokenizer as options name it, with the replacements of its template and EOS token."""

    name: str
    chat_template: str | None = None
    eos_token: str | None = None

    @classmethod
    def of(cls, config: TokenizeConfig) -> NamedTokenizer:
        """Return the tokenizer of a run."""
        return cls(config.tokenizer, config.chat_template, config.eos_token)


def settings_for(tokenizer: NamedTokenizer) -> dict[str, str]:
    """Return the environment variables that make a server load this tokenizer."""
    return {_VARIABLE: json.dumps(tokenizer)}


def named_tokenizer() -> NamedTokenizer | None:
    """Return the tokenizer that this process is to load; None without any."""
    value = os.environ.get(_VARIABLE)
    return None if value is None else NamedTokenizer(*json.loads(value))
