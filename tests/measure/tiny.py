"""A model small enough to be measured on a CPU in a test."""

from __future__ import annotations

from pathlib import Path

from packer_cli.cost.profile import Profile

TINY = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
    "dtype": "float32",
}  # fmt: skip
FAST = ("--lengths", "64,192", "--samples", "1,4", "--repeats", 1, "--device", "cpu")


def profile_of(path: Path) -> Path:
    minimal = Profile(model={"num_layers": 1, "num_heads": 1}, gpu="x", num_gpus=1, iterations=())
    path.write_text(minimal.model_dump_json())
    return path
