"""Keys that carry meaning elsewhere and that no record shape reads.

Where training without them would be wrong, the record is rejected: images, answers marked as bad, a part of a
preference pair.
The others are counted, and the run says how many records have them.

Price: nothing for records without such a key, since a set of keys is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packer_cli.corpus.records.base import BadRecordError, type_name
from packer_cli.corpus.records.weights import LISTS
from packer_cli.corpus.types import Message, Record

MEDIA = (
    *("image", "images", "video", "videos", "audio", "audios"),
    *("pixel_values", "pixel_values_videos", "input_features"),
)
"""Media that a text refers to by placeholders: TRL, LLaMA-Factory, ms-swift, LLaVA; and what transformers' processors
make of them."""
_BAD_ANSWERS = ("label", "kto_tag")
"""False where the answer is not to be learned: TRL and LLaMA-Factory."""
PAIRS = (
    *("chosen", "rejected", "rejected_response", "rejected_messages"),
    *("preferred_output", "non_preferred_output"),
)
"""A better or a worse answer: TRL, LLaMA-Factory, Axolotl; ms-swift; OpenAI."""
_INSTEAD = {
    "functions": '"tools"',
    "tool_defs": '"tools"',
    "loss_scale": '"weight"',
    "sample_weight": '"weight"',
    "system_prompt": '"system" beside "messages"',
}
"""Key -> what hbpack reads in its place."""
_COUNTED = (
    *("tools", "system", "history", "input", "context", "documents", "chat_template_kwargs"),
    *("reasoning", "reasoning_content", "thinking"),
    *_INSTEAD,
    *LISTS,
)
WATCHED = frozenset((*MEDIA, *_BAD_ANSWERS, *PAIRS, *_COUNTED))
"""Every key that matters beside those of a shape."""
NO_SHAPE = (WATCHED | {"question"}) - {"chosen", "rejected"}
"""Keys that are no record by themselves."""
TEXT_ONLY = "hbpack supports text only, not images, audio or video"
NO_PAIRS = (
    "--items none takes no preference pairs; leave it out, or, to train on the better answers alone, write them as "
    '"messages", or as "completion" beside "prompt"'
)
OTHER_PAIR = (
    'a preference pair needs "chosen" and "rejected", texts or messages, beside a "prompt" or with a common beginning'
)
NO_ITEMS = "which --items none does not take"
HALF_PAIR = 'which needs both "chosen" and "rejected"'

_OF_PLAIN = {"text": (*MEDIA, *_BAD_ANSWERS, *PAIRS, *LISTS), "tokens": MEDIA}
"""Keys that matter in records without turns. A text is whole by itself, and its label is often a class."""
_TRAINING_PARTS = ("train_detail", "training_detail")
_OF_TURNS = frozenset((*MEDIA, *_TRAINING_PARTS, "loss_scale"))


def watched(schema: str, keys: Iterable[str], read: set[str]) -> list[str]:
    """List the keys of a record that matter, and that its shape does not read.

    Args:
        schema: the record's shape.
        read: the keys that the shape reads.
    """
    return [key for key in keys if key in _OF_PLAIN.get(schema, WATCHED) and key not in read]


def find_unused(schema: str, record: Record, keys: Iterable[str], *, no_pairs: str | None) -> list[str]:
    """List the watched keys that hold something which is not used.

    Args:
        schema: the record's shape.
        no_pairs: why a preference pair is not trained on as a record of this shape; None: it is.

    Raises:
        BadRecordError: training without one of them would be wrong.
    """
    found = []
    for key in keys:
        value = record.get(key)
        if is_empty(value):
            continue
        if schema != "text":
            if key in MEDIA:
                raise BadRecordError(f'"{key}" is not empty, and {TEXT_ONLY}; remove it to train on the text alone')
            if key in _BAD_ANSWERS and isinstance(value, bool):
                if value:
                    continue  # The answer is to be learned.
                raise BadRecordError(
                    f'"{key}" is false, so the answer is a bad one, and hbpack trains on good ones only'
                )
            if key in PAIRS and no_pairs is not None:
                raise BadRecordError(
                    f'"{key}" makes it a preference pair, {no_pairs}; --schema {schema} ignores the pair'
                )
        found.append(key)
    return found


def is_pair(keys: Iterable[str]) -> bool:
    """Whether a record of unknown shape holds a preference pair."""
    return len(set(PAIRS).intersection(keys)) > 1


def check_turns(turns: list[Message], key: str) -> None:
    """Raise BadRecordError if training on a message as it is would be wrong.

    Args:
        key: of the messages in the record, for errors.
    """
    for index, turn in enumerate(turns):
        if "function_call" in turn and not (is_empty(turn["function_call"]) or is_empty(turn.get("tool_calls"))):
            raise BadRecordError(f'{key}[{index}]: has both "tool_calls" and "function_call"; keep one of them')
        for name in turn:
            if name in _OF_TURNS:
                _check_turn(turn, name, f"{key}[{index}]")


def _check_turn(turn: Message, name: str, where: str) -> None:
    value = turn[name]
    if name in MEDIA:
        if not is_empty(value):
            raise BadRecordError(
                f'{where}: "{name}" is not empty, and {TEXT_ONLY}; remove it to train on the text alone'
            )
    elif turn["role"] == "assistant":
        if name == "loss_scale" and value not in (None, 1):
            shown = f"{value}"[:30] if isinstance(value, (int, float)) else type_name(value)
            raise BadRecordError(f'{where}: "{name}" is {shown}, which hbpack does not read; write "weight": ...')
        if name in _TRAINING_PARTS and not is_empty(value):
            raise BadRecordError(f'{where}: "{name}" selects parts of a message, which hbpack does not support')


def is_empty(value: Any) -> bool:
    """Whether a value stands for none: null, an empty string, or an array or object of nothing else."""
    if isinstance(value, dict):
        return all(map(_is_blank, value.values()))
    if isinstance(value, list):
        return all(map(_is_blank, value))
    return _is_blank(value)


def _is_blank(value: Any) -> bool:
    return value is None or (hasattr(value, "__len__") and not len(value))


def describe(key: str) -> str:
    """Describe a key that is not used, for people."""
    instead = _INSTEAD.get(key)
    return f'"{key}", which hbpack does not use' + (f" (it reads {instead})" if instead else "")
