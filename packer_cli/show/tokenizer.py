"""The tokenizer of a packed set, to decode with: found again by its name, and compared by its fingerprint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from packer_cli.errors import ConfigError, TokenizerError
from packer_cli.format.manifest import Manifest
from packer_cli.show.decode import Decode
from packer_cli.tokens.tokenizer.loading import load_tokenizer


class Decoder(NamedTuple):
    """What decodes, and what to say of it."""

    decode: Decode
    name: str | None
    """Of the tokenizer; None where there is none, and the text is token ids."""
    warning: str | None = None


def load_decoder(manifest: Manifest, given: str | None) -> Decoder:
    """The tokenizer that the user named, else the one that the set was made with, if it is still there.

    Price: importing transformers, a second or so.

    Raises:
        TokenizerError: the one that the user named cannot be loaded.
        ConfigError: it has another vocabulary.
    """
    name = given if given is not None else manifest.tokenizer.get("name")
    if name is None:
        return _without("the set does not name its tokenizer; give --tokenizer PATH")
    try:
        loaded = load_tokenizer(name, eos_token=manifest.config.tokens.get("eos_token"))
    except TokenizerError as error:
        if given is not None:
            raise
        return _without(f"the set's tokenizer cannot be loaded ({error}); give --tokenizer PATH if it has moved")
    template = manifest.config.tokens.get("chat_template")
    if template is not None:
        loaded = replace(loaded, chat_template=template, tool_template=None)
    found, wanted = loaded.describe(), manifest.tokenizer
    if found["vocab_size"] != wanted.get("vocab_size"):
        problem = (
            f"tokenizer {name!r} has {found['vocab_size']:,} token ids and the set's has "
            f"{wanted.get('vocab_size'):,}, so it is another one"
        )
        if given is not None:
            raise ConfigError(f"{problem}; name the one that the set was made with")
        return _without(f"{problem}; give --tokenizer PATH")
    return Decoder(_decode_with(loaded), name, _doubt(name, found, wanted))


def _decode_with(loaded: Any) -> Decode:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(loaded.backend_json)

    def decode(ids: list[int]) -> str:
        text: str = backend.decode(ids, skip_special_tokens=False)
        return text

    return decode


def _doubt(name: str, found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    if found["fingerprint"] == wanted.get("fingerprint"):
        return None
    if found["chat_template_fingerprint"] != wanted.get("chat_template_fingerprint"):
        what = "has another chat template than"
    else:
        what = "is not, or no longer, quite"
    return f"tokenizer {name!r} {what} the one that the set was made with: the text may differ from what was encoded"


def decode_ids(ids: list[int]) -> str:
    """Ids as they are: what is left without a tokenizer.

    >>> decode_ids([1, 22])
    '1 22 '
    """
    return "".join(f"{number} " for number in ids)


def _without(problem: str) -> Decoder:
    return Decoder(decode_ids, None, f"token ids are shown instead of text: {problem}")
