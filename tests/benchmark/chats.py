"""Renders chats, and finds the ranges to train on: with outlines and other short ways, and without, in one process."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer
from tests.benchmark.pack import corpora
from tests.benchmark.report import table, times, versions
from tests.tokens.published_templates import PUBLISHED

_TEMPLATES = ("qwen3", "llama3", "mistral", "chatml-generation")


def run(_: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    data = corpora()
    with (data / "sft_messages.jsonl").open(encoding="utf-8") as file:
        chats = [json.loads(line)["messages"] for line in file]
    tokenizer = LoadedTokenizer(str(data / "tokenizers" / "minimind-chatml"))
    assert tokenizer.chat_template
    cases = {"the tokenizer's own": (tokenizer.chat_template, tokenizer.special_tokens_map, tokenizer.special_tokens)}
    for name in _TEMPLATES:
        template, bos, eos, special_tokens = PUBLISHED[name]
        cases[name] = (template, {"bos_token": bos, "eos_token": eos}, special_tokens)
    rows = []
    for name, (template, variables, special_tokens) in cases.items():
        for want_spans in (False, True):
            renderers = {
                way: ChatRenderer(
                    template,
                    variables=variables,
                    special_tokens=special_tokens,
                    want_spans=want_spans,
                    is_exact=way == "jinja2",
                )
                for way in ("jinja2", "hbpack")
            }
            rates = _rates({way: renderer.render for way, renderer in renderers.items()}, chats, runs)
            own = [f"{statistics.median(rates[way]):,.0f}" for way in rates]
            gain = times(statistics.median(rates["hbpack"]), statistics.median(rates["jinja2"]))
            rows.append([name, "text and ranges" if want_spans else "text", *own, gain])
    header = ["template", "what", "jinja2, chats/s", "hbpack, chats/s", "gain"]
    return (
        f"{len(chats):,} chats with {statistics.mean(map(len, chats)):.1f} messages on average; CPU time on one core, "
        f"median of {runs} rounds in which both take turns. *jinja2* renders each conversation in transformers' "
        "sandbox; *hbpack* fills the contents of plain ones into an outline. *Ranges* are the parts that the "
        "assistant wrote. The first template "
        f"writes an empty thinking block into each answer. {versions(('jinja2', 'transformers'))}.\n\n"
        + table(header, rows)
    )


def _rates(functions: dict[str, Callable[[Any], object]], chats: list[Any], runs: int) -> dict[str, list[float]]:
    """Chats per second of CPU time: for each function, one value per round."""
    rates: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(runs):
        for name, function in functions.items():
            start = time.process_time()
            for chat in chats:
                function(chat)
            rates[name].append(len(chats) / (time.process_time() - start))
    return rates
