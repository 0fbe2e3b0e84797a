"""Corpora of items, made from the words of a text: preference pairs with long prompts, and thinking conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]


def pairs(words: list[str], number: int, seed: int = 0, *, median: int = 1500) -> Iterator[Record]:
    """Pairs whose prompts have about `median` words (lognormal, at most 16 times as many), and answers of 20 to 800.

    Args:
        words: from which texts are cut.
    """
    rng = np.random.default_rng(seed)
    for index in range(number):
        length = int(min(16 * median, rng.lognormal(np.log(median), 0.8)))
        answers = np.minimum(800, 20 + rng.lognormal(np.log(150), 0.7, 2)).astype(int)
        prompt = f"Question {index}. {_text(words, rng, length)}"
        chosen, rejected = (_text(words, rng, int(size)) for size in answers)
        yield {"prompt": prompt, "chosen": " " + chosen, "rejected": " " + rejected}


def conversations(words: list[str], number: int, seed: int = 0, *, turns: int = 8) -> Iterator[Record]:
    """Conversations of so many turns, each with 100 to 800 words of reasoning that templates drop later."""
    rng = np.random.default_rng(seed)
    for index in range(number):
        messages: list[Record] = [{"role": "system", "content": f"Session {index}. {_text(words, rng, 150)}"}]
        for _ in range(turns):
            asked, thought, said = rng.integers((20, 100, 30), (120, 800, 200))
            messages.append({"role": "user", "content": _text(words, rng, int(asked))})
            answer = {"content": _text(words, rng, int(said)), "reasoning_content": _text(words, rng, int(thought))}
            messages.append({"role": "assistant", **answer})
        yield {"messages": messages}


def write_jsonl(path: Path, records: Iterator[Record]) -> Path:
    """Write the records; the path again."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def _text(words: list[str], rng: np.random.Generator, length: int) -> str:
    first = int(rng.integers(0, len(words)))
    return " ".join(words[(first + k) % len(words)] for k in range(length))
