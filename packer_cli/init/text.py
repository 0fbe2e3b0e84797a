"""A draft as commented YAML."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from packer_cli.init.look import Look
from packer_cli.sizes import counted, format_bytes

_WIDTH = 100
_MOST_REJECTS = 3
_PLAIN = re.compile(r"[\w./@-][\w./@:*-]*")
"""Text that YAML reads as it stands; numbers and words such as `no` are excluded below."""
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "~", "y", "n"}


def config_text(draft: Draft, looks: Sequence[Look], name: str) -> str:
    """The config file.

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
        lines += [f"{option}: {_value(value)}", ""]
    for option, (example, what) in draft.unknown.items():
        lines += [*_comment(what), f"# {option}: {example}", ""]
    if draft.lost:
        lines += [
            "# Not carried over:",
            *(line for text in draft.lost for line in _comment(text, begin="# - ", then="#   ")),
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _about(look: Look) -> list[str]:
    if not look.num_bytes:
        return _comment(f"{look.name}: empty")
    shapes = ", ".join(f"{shape} {number}" for shape, number in look.shapes.most_common()) or "none"
    files = f"{counted(look.num_files, 'file')} of {'/'.join(look.formats)}, {format_bytes(look.num_bytes)}"
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
    if look.rejects:
        facts.append(f"{counted(len(look.rejects), 'record')} of the sample cannot be used:")
        facts += [f"  {reason}" for reason in look.rejects[:_MOST_REJECTS]]
    return [line for fact in facts for line in _comment(fact)]


def _comment(text: str, begin: str = "# ", then: str = "# ") -> list[str]:
    clean = " ".join(text.split("\n"))
    return textwrap.wrap(clean, _WIDTH, initial_indent=begin, subsequent_indent=then, break_long_words=False)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """A value on a line of YAML: text as it stands where no reader takes it for anything else, else in quotes."""
    if isinstance(value, bool) or not isinstance(value, str):
        return json.dumps(value)
    is_number = re.fullmatch(r"[-+.\d:_eE]+", value) is not None
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not is_number and not value.endswith(":"):
        return value
    return json.dumps(value, ensure_ascii=False)


@dataclass(kw_only=True)
class Draft:
    """Options of `hbpack pack`, by their names in a config file."""

    inputs: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Name -> value, in the order of the file."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Name -> why it has this value."""
    unknown: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (an example value, what to put there): options that stand in the file as comments."""
    lost: list[str] = field(default_factory=list)
    """What of another trainer's file could not be carried over, in words."""

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
