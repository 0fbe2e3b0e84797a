"""The chat templates that `--chat-template` knows by name; their text is in `jinja/`.

Each writes the text of the model's own template, and marks what the assistant generates with `{% generation %}`.
"""

from __future__ import annotations

from pathlib import Path

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
    """The Jinja text of a name in `NAMED`."""
    return (Path(__file__).parent / "jinja" / f"{name}.jinja").read_text(encoding="utf-8").removesuffix("\n")
