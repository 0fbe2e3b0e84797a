"""Finds and loads a tokenizer: folder, file or Hub name -> `LoadedTokenizer`.

Ids are those of transformers' `AutoTokenizer`. If it would choose the generic class (no model config), that class is
loaded directly: 0.5 s instead of 2 s, mostly imports.

The chat templates that `--chat-template` knows by name; their text is in `jinja/`. Each writes the text of the model's
own template, and marks what the assistant generates with `{% generation %}`.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from packer_cli.errors import TokenizerError
from packer_cli.format.tokens import TokenizerInfo
from packer_cli.tokens.tokenizer.files import check_template, load_hf, stop_ids

TokenizerJson = dict[str, Any]
"""`tokenizer.json` of the tokenizers library."""


class LoadedTokenizer:
    """A tokenizer with the facts that `tokens/` needs about it. Can be pickled."""

    def __init__(self, path: str, chat_template: str | None = None, eos_token: str | None = None) -> None:
        """Load a tokenizer.

        Args:
            path: a folder (tokenizer.json, or a SentencePiece model, or vocab.json and merges.txt;
                tokenizer_config.json and chat_template.jinja are optional); one such file, whose siblings are used
                too; or a Hugging Face Hub name (looked up in the local cache first).
            chat_template: Jinja text, a file that holds it, or a name of `NAMED`, instead of the tokenizer's own.
            eos_token: a token of the vocabulary, instead of the tokenizer's own EOS.

        Raises:
            TokenizerError: the tokenizer or the template cannot be loaded, or hbpack cannot use it.
        """
        self.hf: Any = load_hf(path)
        """transformers' tokenizer (`TokenizersBackend` or a class of one model)."""
        backend = getattr(self.hf, "backend_tokenizer", None)
        if backend is None:
            raise TokenizerError(
                f"{path}: {type(self.hf).__name__} runs in pure Python, but hbpack needs a fast tokenizer; "
                "convert it to a tokenizer.json first"
            )
        if eos_token is not None:
            _set_eos(self.hf, eos_token, path)
        template: Any = self.hf.chat_template
        self.tool_template: str | None = None
        """Template for conversations with tools, if the tokenizer has a second one."""
        if chat_template is not None:
            template = read_template(chat_template)
            if is_named(chat_template):
                _check_tokens(backend, chat_template, path)
        else:
            check_template(template, path)
            if isinstance(template, dict):
                template, self.tool_template = template.get("default"), template.get("tool_use")
        self.chat_template: str | None = template
        """Jinja source, or None."""
        self.prefix_ids, self.suffix_ids = _added_around(backend, path)
        """Ids that the post-processor puts before and after a plain text."""
        self.backend_json = _plain_backend_json(backend)
        """The `tokenizers` tokenizer as JSON, without truncation and padding."""
        self.bos_token_id = _id_of(self.hf, "bos_token")
        self.eos_token_id = _id_of(self.hf, "eos_token")
        self.pad_token_id = _id_of(self.hf, "pad_token")
        self.special_tokens_map: dict[str, str] = self.hf.special_tokens_map
        """`bos_token` and so on, as templates see them."""
        added = self.hf.added_tokens_decoder
        self.special_tokens = tuple(sorted(token.content for token in added.values() if token.special))
        """Texts of the added tokens that are special, sorted."""
        self.added_tokens: dict[str, int] = {token.content: number for number, token in added.items()}
        """Text -> id of all added tokens."""
        self.stops = tuple(added[number].content for number in stop_ids(path) if number in added)
        """Added tokens at which the model stops, by its configs; some are the first of another's turn."""

    @cached_property
    def config(self) -> TokenizerJson:
        """`backend_json` parsed."""
        import orjson

        parsed: TokenizerJson = orjson.loads(self.backend_json)
        return parsed

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        vocab = self.config["model"]["vocab"]
        ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        return max(len(self.hf), max(ids, default=-1) + 1, max(self.added_tokens.values(), default=-1) + 1)

    def describe(self) -> TokenizerInfo:
        """Describe what identifies the tokenizer, without its path and backend."""
        template = self.chat_template
        return TokenizerInfo(
            fingerprint=self._fingerprint,
            vocab_size=self.vocab_size,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            eos_token=self.special_tokens_map.get("eos_token"),
            pad_token_id=self.pad_token_id,
            chat_template_fingerprint=None if template is None else _text_fingerprint(template),
        )

    @cached_property
    def _fingerprint(self) -> str:
        parts = [
            self.backend_json,
            self.chat_template or "",
            self.tool_template or "",
            json.dumps(self.special_tokens_map, sort_keys=True),
            str(bool(self.hf.split_special_tokens)),
        ]
        return _text_fingerprint("\0".join(parts))


def _text_fingerprint(text: str) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def _check_tokens(backend: Any, name: str, path: str) -> None:
    """Raise TokenizerError unless a tokenizer has the tokens of a template in `NAMED`."""
    for token in NAMED[name]:
        if len(backend.encode(token, add_special_tokens=False).ids) != 1:
            raise TokenizerError(
                f"--chat-template {name} writes {token}, which is not a token of {path}; add it to the tokenizer and "
                "the model, or choose another template"
            )


def _set_eos(hf: Any, token: str, path: str) -> None:
    """Raise TokenizerError unless the vocabulary has the token."""
    if hf.backend_tokenizer.token_to_id(token) is None:
        known = sorted(str(added) for added in hf.added_tokens_decoder.values() if added.special)
        some = f"; its special tokens are {', '.join(known[:10])}{', ...' if len(known) > 10 else ''}" if known else ""
        raise TokenizerError(f"--eos-token {token!r} is not in the vocabulary of {path}{some}")
    hf.eos_token = token


def _id_of(hf: Any, name: str) -> int | None:
    token = getattr(hf, name, None)
    return None if token is None else hf.backend_tokenizer.token_to_id(str(token))


def _plain_backend_json(backend: Any) -> str:
    text: str = backend.to_str()
    if backend.truncation is None and backend.padding is None:
        return text
    # transformers disables both in each call without `padding` and `truncation`.
    config = json.loads(text)
    config["truncation"] = config["padding"] = None
    return json.dumps(config, ensure_ascii=False)


def _added_around(backend: Any, path: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the post-processor puts before and after every text."""
    processor = backend.post_processor
    if processor is None or processor.num_special_tokens_to_add(False) == 0:
        return (), ()
    found = set()
    for probe in ("a", "The 7 words\n", "é"):
        bare = backend.encode(probe, add_special_tokens=False).ids
        full = backend.encode(probe, add_special_tokens=True).ids
        extra = len(full) - len(bare)
        at = next((at for at in range(extra + 1) if bare and full[at : at + len(bare)] == bare), None)
        if at is not None:
            found.add((tuple(full[:at]), tuple(full[at + len(bare) :])))
    if len(found) != 1:
        raise TokenizerError(
            f"{path}: the tokenizer's post-processor does more than put tokens around a text, which hbpack does not "
            "support; give a tokenizer.json without it"
        )
    return found.pop()


_JINJA = re.compile(r"\{[{%#]")


def is_named(given: str) -> bool:
    """Whether a template is given by a name of `NAMED`; a file of that name comes first."""
    return given in NAMED and not os.path.isfile(given)


def read_template(given: str) -> str:
    """Read the template's text, given directly, as a file, or by a name of `NAMED`; a file comes before a name.

    Raises:
        TokenizerError: it is empty, not UTF-8, or the file cannot be read.
    """
    if not given.strip():
        raise TokenizerError(
            f"chat template {given!r} is empty; give the path of a Jinja file, or Jinja text with {{% or {{{{ in it"
        )
    if is_named(given):
        return read_named(given)
    if not _JINJA.search(given) or ("\n" not in given and len(given) < 4096 and os.path.isfile(given)):
        try:
            return Path(given).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise TokenizerError(f"chat template {given}: the file is not UTF-8 text; save it as UTF-8") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise TokenizerError(
                f"chat template {given[:200]!r} cannot be read ({reason}); give the path of a Jinja file, Jinja text "
                f"with {{% or {{{{ in it, or one of {', '.join(NAMED)}"
            ) from None
    try:
        given.encode()
    except UnicodeEncodeError:
        raise TokenizerError(f"chat template {given[:200]!a} is not UTF-8 text; write it as UTF-8") from None
    return given


_LLAMA3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_IM = ("<|im_start|>", "<|im_end|>")
NAMED: dict[str, tuple[str, ...]] = {
    "chatml": _IM,
    "gemma3": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "llama3": _LLAMA3,
    "llama3.1": _LLAMA3,
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]"),
    "phi3": ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
    "qwen2.5": _IM,
    "qwen3": _IM,
}
"""Name -> the tokens that the template writes, which a tokenizer must have."""


def read_named(name: str) -> str:
    """Read the Jinja text of a name in `NAMED`."""
    path = Path(__file__).parents[1] / "templates" / "jinja" / f"{name}.jinja"
    return path.read_text(encoding="utf-8").removesuffix("\n")
