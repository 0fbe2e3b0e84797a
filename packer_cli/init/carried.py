"""Options that the configs of several trainers share: the data, messages, model, rows, epochs and validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packer_cli.corpus.records.messages import SHAPE as MESSAGES
from packer_cli.init.text import Draft, TrainerConfig
from packer_cli.sizes import format_tokens


def hub_name(entry: TrainerConfig, name: str, subset: str) -> str:
    """Name a data set on the Hub as `hbpack pack` takes it; `subset` is the key of its configuration."""
    name = f"{name}/{entry[subset]}" if entry.get(subset) else name
    return f"{name}:{entry['split']}" if entry.get("split") else name


def wrong_messages(field: str, role: str, content: str) -> str | None:
    """Say why hbpack does not read messages in a field that have these keys; None if it does."""
    if not MESSAGES.matches([field]):
        return f"messages are in {field}: hbpack reads {MESSAGES.expected()}; rename it"
    if (role, content) not in (("role", "content"), ("from", "value")):
        return f"messages have {role} and {content}: hbpack reads role and content, or from and value"
    return None


def add_model(draft: Draft, model: Any, tokenizer: Any = None) -> None:
    """Add the tokenizer, by default the model's, and ask for the model if it is here."""
    name = tokenizer or model
    if name:
        draft.set("tokenizer", str(name))
    if model and Path(str(model)).is_dir():
        draft.ask("model", str(model), "With gpu, such as h100, times are predicted, and groups can be auto.")


def add_rows(
    config: TrainerConfig, name: str, batch: Sequence[str], draft: Draft, num_gpus: int | None, degree: int = 1
) -> None:
    """Add rows as long as the trainer's, and the tokens of its steps.

    Args:
        name: key of the length of a row, an integer.
        batch: keys whose product is the number of rows of a data-parallel rank.
        num_gpus: None if not known.
        degree: GPUs that share each row.
    """
    length = config[name]
    draft.set("groups", [f"{format_tokens(length)}:{degree}"], f"{name} {length}: rows as long as the trainer's.")
    rows = [config.get(key) for key in batch]
    if num_gpus and all(isinstance(number, int) for number in rows):
        tokens = math.prod(rows) * length * max(1, num_gpus // degree)  # type: ignore[arg-type]
        why = f"{' x '.join((*batch, name))} on every data-parallel rank."
        draft.set("global-tokens", format_tokens(tokens), why)


def add_integers(config: TrainerConfig, draft: Draft, **options: str) -> None:
    """Add options (key -> option) that take integers; a number of epochs is at least 1."""
    for name, option in options.items():
        value, least = config.get(name), int(option == "epochs")
        if isinstance(value, (int, float)) and math.isfinite(value) and value == int(value) and value >= least:
            draft.set(option, int(value))
        elif value is not None:
            draft.lost.append(f"{name}: {value}: {option} takes an integer")


def add_validation(config: TrainerConfig, name: str, draft: Draft) -> None:
    """Add the samples to set aside: a share below 1, else a number of them."""
    size = config.get(name)
    if isinstance(size, int | float) and size > 0:
        share = f"{100 * size:.6g}%" if size < 1 else int(size)
        draft.set("validation", share, f"{name} {size}. They are other samples than the trainer would set aside.")
