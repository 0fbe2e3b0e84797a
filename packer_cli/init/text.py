"""A draft as commented YAML, and which length groups to write into it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from packer_cli.config import PlanConfig, validate
from packer_cli.corpus.data_files import shown_skipped
from packer_cli.init.look import Look
from packer_cli.plan.core.groups import divisors
from packer_cli.sizes import counted, format_bytes, format_tokens, four_digits

_WIDTH = 100
_MOST_REJECTS = 3
_PLAIN = re.compile(r"[\w./-][\w./@:*-]*")
"""Text that YAML reads as it stands, unless it is a number or a word such as `no`."""


def config_text(draft: Draft, looks: Sequence[Look], name: str) -> str:
    """Write the config file.

    Args:
        looks: of the inputs, in their order; empty where they could not be looked at.
        name: of the file, for its first line.
    """
    lines = [f"# Written by hbpack init. Pack with: hbpack pack --config {name}", ""]
    for look in looks:
        lines += _about(look)
    lines += ["inputs:", *(f"  - {_scalar(each)}" for each in draft.inputs), ""]
    for option, value in draft.options.items():
        if option in draft.reasons:
            lines += _comment(draft.reasons[option])
        lines += [f"{option}: {_scalar(value)}", ""]
    for option, (example, what) in draft.unknown.items():
        lines += [*_comment(what), f"# {option}: {example}", ""]
    if draft.lost:
        lines += [
            "# Not carried over:",
            *(line for text in draft.lost for line in _comment(text, begin="# - ", then="#   ")),
            "",
        ]
    if draft.trainer_lines:
        lines += ["# To train the packed set, set in the config of the trainer:"]
        lines += [f"#   {line}" for line in draft.trainer_lines]
    return "\n".join(lines).rstrip("\n") + "\n"


def _about(look: Look) -> list[str]:
    if not look.num_bytes:
        return _comment(f"{look.name}: empty")
    shapes = ", ".join(f"{shape} {number}" for shape, number in look.shapes.most_common()) or "none"
    formats = "/".join(dict.fromkeys(file.format for file in look.files))
    files = f"{counted(len(look.files), 'file')} of {formats}, {format_bytes(look.num_bytes)}"
    sample = counted(len(look.lengths) + len(look.rejects), "record")
    facts = [
        f"{look.name}: {files}, about {counted(round(look.num_records), 'record')}",
        f"A sample of {sample} by shape: {shapes}; keys: {', '.join(look.keys) or 'none that hbpack reads'}.",
    ]
    if look.lengths:
        how = "tokens, estimated from bytes" if look.is_estimated else "tokens"
        facts.append(
            f"{min(look.lengths):,} to {max(look.lengths):,} {how}, half of them up to {median(look.lengths):,.0f}."
        )
    if look.skipped:
        facts.append(f"Skipped: {shown_skipped(look.skipped)}.")
    if look.rejects:
        facts.append(f"{counted(len(look.rejects), 'record')} of the sample cannot be used:")
        facts += [f"  {reason}" for reason in look.rejects[:_MOST_REJECTS]]
    return [line for fact in facts for line in _comment(fact)]


def _comment(text: str, begin: str = "# ", then: str = "# ") -> list[str]:
    clean = " ".join(text.split("\n"))
    return textwrap.wrap(clean, _WIDTH, initial_indent=begin, subsequent_indent=then, break_long_words=False)


def _scalar(value: Any) -> str:
    """Write a value on a line of YAML: text as it stands where readers take it for nothing else, else in quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and not value.endswith(":") and yaml.safe_load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


ConfigValues = dict[str, Any]
"""Values of a config file by the names of options: text, numbers, true or false, and lists of these."""
TrainerConfig = dict[str, Any]
"""Another trainer's file, or an entry of it; whatever its keys are."""


@dataclass(kw_only=True)
class Draft:
    """Options of `hbpack pack`, by their names in a config file."""

    inputs: list[str] = field(default_factory=list)
    options: ConfigValues = field(default_factory=dict)
    """Name -> value, in the order of the file."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Name -> why it has this value."""
    unknown: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (an example value, what to put there): options that the file holds as comments."""
    lost: list[str] = field(default_factory=list)
    """Parts of another trainer's file that could not be carried over, in words."""
    trainer_lines: list[str] = field(default_factory=list)
    """Lines that another trainer's file must have, so that it trains the packed set."""

    def set(self, name: str, value: Any, reason: str = "") -> None:
        """Set an option, and say why."""
        self.unknown.pop(name, None)
        self.options[name] = value
        if reason:
            self.reasons[name] = reason

    def ask(self, name: str, example: str, what: str) -> None:
        """Leave an option to the reader, unless it is set."""
        if name not in self.options:
            self.unknown[name] = (example, what)


_A_GPU = 16384
"""Tokens of a row on each GPU: HBP's tables end with 16k:1 and 128k:8 for 7B models on 80 GB."""
_LEAST = 8192
"""Shorter rows leave a GPU idle."""


def propose_groups(lengths: NDArray[np.int32], num_gpus: int) -> tuple[list[str], str]:
    """Propose groups as `--groups` takes them, and say why.

    One group, or a second one for samples that one GPU does not hold: as many GPUs share its rows as leave each at
    most 16k tokens. Samples that all of them do not hold so are longer than the groups.

    Args:
        lengths: int32[n], of a sample; may be empty.

    >>> propose_groups(np.array([100, 20_000, 100_000], dtype=np.int32), 8)[0]
    ['16k:1', '128k:8']
    """
    if not len(lengths):
        return ["16k:1"], "No length is known: rows of 16k tokens, each on one GPU."
    longest = int(lengths.max())
    capacity = 1 << (longest - 1).bit_length()
    if capacity <= _A_GPU:
        capacity = max(capacity, _LEAST)
        return [f"{format_tokens(capacity)}:1"], f"One GPU holds the longest sample seen, {longest:,} tokens."
    wanted = capacity // _A_GPU
    degree = next((each for each in divisors(num_gpus) if each >= wanted), num_gpus)
    capacity = min(capacity, _A_GPU * degree)
    groups = [f"{format_tokens(_A_GPU)}:1", f"{format_tokens(capacity)}:{degree}"] if degree > 1 else ["16k:1"]
    why = f"Rows of 16k tokens run on one GPU each. The longest sample seen has {longest:,} tokens"
    if degree > 1:
        why += f", so {degree} GPUs share a long row"
    num_long = int((lengths > capacity).sum())
    if num_long:
        why += f", and {num_long / len(lengths):.1%} are over {format_tokens(capacity)}, which {num_gpus} GPUs hold"
    return groups, f"{why}."


def fastest_groups(values: Mapping[str, Any], lengths: NDArray[np.int32]) -> tuple[list[str], str]:
    """Find groups as `--groups` takes them with the shortest predicted epoch, and say why.

    Samples that no row in memory holds are longer than the groups.

    Args:
        values: plan options with a model, a GPU and a number of GPUs.
        lengths: int32[n], of a sample, n > 0.

    Raises:
        UsageError: an option is wrong, or memory is full before any sample.
    """
    from packer_cli.config.gpu_model import load_models
    from packer_cli.groups.auto import choose

    config = validate(PlanConfig, values)
    model, _ = load_models(config, "hbpack init")
    fits = max(map(model.memory.longest, model.layouts(config.gpus, config.layout)), default=0) if model else 0
    longest = int(lengths.max())
    most = fits // 1024 * 1024 or fits if 0 < fits < longest else longest
    if most < longest:
        config = validate(PlanConfig, {**values, "max_length": most})
    _, record = choose(config, lengths)
    seconds = "" if record.seconds is None else f": {four_digits(record.seconds)} s for {record.tokens:,} tokens"
    why = f"The shortest predicted epoch of the sample{seconds}"
    others = [each for each in record.alternatives if each.groups != record.groups and each.gain > 0]
    if others:
        why += f"; {others[0].groups} takes {others[0].gain:.1%} longer"
    limit = ""
    if most < longest:
        share = float((lengths > most).mean())
        why += f". Memory holds rows of {format_tokens(most)} tokens, and {share:.1%} of the records are longer"
        limit = f" and `max-length: {format_tokens(most)}`"
    return record.groups.split(","), f"{why}. Write `groups: auto`{limit} to choose by all of the data."
