"""Preference pairs: a better and a worse answer to one prompt.

::

    {"prompt": ..., "chosen": ..., "rejected": ...}             texts, or messages (TRL)
    {"chosen": ..., "rejected": ...}                            the prompt is what they begin with (TRL)
    {"conversations": [...], "chosen": {...}, "rejected": {...}}        or `messages` (LLaMA-Factory)
    {"messages": [...], "rejected_response": "..."}             or `rejected_messages`, a whole conversation (ms-swift)
    {"prompt_ids": [...], "chosen_ids": [...], "rejected_ids": [...]}   tokenized, see `token_pairs`

An answer may be a message alone. What the item brings: `margin`, `ref_chosen_logps`, `ref_rejected_logps`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packer_cli.corpus.records.answers import OPTIONAL, Answer, answers_to, common_beginning, read_answer, read_number
from packer_cli.corpus.records.base import BadRecordError, Shape, type_name
from packer_cli.corpus.records.messages import read_turns
from packer_cli.corpus.records.weights import read_weight
from packer_cli.corpus.types import Document, Message, Record
from packer_cli.format.constants import ITEM_VALUES

_PROMPTS = ("prompt", "messages", "conversations")
_OTHER_PROMPTS = ("instruction", "question", "input")
"""Keys that hold the prompt in other data sets."""
_OF_SWIFT = ("rejected_response", "rejected_messages")
TOKENIZED = ("prompt_ids", "chosen_ids", "rejected_ids")


class PairRecord(NamedTuple):
    """A tokenized pair, to be read with others by `token_pairs.read_pairs`."""

    line: int
    record: Record


def parse(record: Record, line: int) -> Document | PairRecord:
    """Read one pair; a tokenized one is only recognized."""
    if "chosen" not in record and "chosen_ids" in record:
        return PairRecord(line, record)
    prompt, chosen, rejected = _of_swift(record) if "chosen" not in record else _of_answers(record)
    names = ("chosen", "rejected")
    weight = read_weight(record)
    branches = answers_to(
        "preference", record, line, prompt, list(zip(names, (chosen, rejected), strict=True)), (weight, weight)
    )
    return Document("preference", line, branches=branches, values=read_values(record))


def read_values(record: Record) -> dict[str, float]:
    """What an item brings, by the names in `ITEM_VALUES`.

    Raises:
        BadRecordError: a value is not a number.
    """
    return {name: read_number(record[name], name) for name in ITEM_VALUES if record.get(name) is not None}


def _of_answers(record: Record) -> tuple[Answer, Answer, Answer]:
    """Prompt, chosen and rejected of a record that has the latter two."""
    chosen, rejected = (read_answer(record[name], name) for name in ("chosen", "rejected"))
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise BadRecordError(
            f'"chosen" is {type_name(chosen)} but "rejected" is {type_name(rejected)}; both must agree'
        )
    key = next((name for name in _PROMPTS if name in record), None)
    if key is None:
        return _divided(record, chosen, rejected)
    prompt = record[key]
    if isinstance(prompt, str) and key == "prompt":
        if isinstance(chosen, str):
            return prompt, chosen, rejected
        asked = {"role": "user", "content": prompt}
        return _after([asked], chosen, rejected, record)
    turns = read_turns(prompt, key)
    return (turns, chosen, rejected) if key == "prompt" else _after(turns, chosen, rejected, record)


def _after(turns: list[Message], chosen: Answer, rejected: Answer, record: Record) -> tuple[Answer, Answer, Answer]:
    """The parts where answers may repeat the prompt, of which they are the continuation or the whole conversation."""
    if all(not isinstance(answer, str) and turns[-1] in answer for answer in (chosen, rejected)):
        return _divided(record, chosen, rejected)
    return turns, chosen, rejected


def _divided(record: Record, chosen: Answer, rejected: Answer) -> tuple[Answer, Answer, Answer]:
    """The parts where the answers begin with the prompt."""
    if isinstance(chosen, str):
        other = next((name for name in _OTHER_PROMPTS if record.get(name)), None)
        if other is not None:
            raise BadRecordError(f'it has no "prompt"; if "{other}" is the prompt, rename it to "prompt"')
    border = common_beginning(chosen, rejected)
    if not isinstance(chosen, str) and not border:
        raise BadRecordError(
            '"chosen" and "rejected" begin with different messages, so they have no prompt in common; give "prompt"'
        )
    return chosen[:border], chosen[border:], rejected[border:]


def _of_swift(record: Record) -> tuple[Answer, Answer, Answer]:
    """The parts where `messages` hold the better answer."""
    turns = read_turns(record["messages"], "messages")
    if record.get("rejected_response") is None:
        return _divided(record, turns, read_turns(record["rejected_messages"], "rejected_messages"))
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        raise BadRecordError(
            '"messages" must end with the answer of the assistant that "rejected_response" is worse than'
        )
    return turns[:-1], turns[-1:], _as_messages(read_answer(record["rejected_response"], "rejected_response"))


def _as_messages(answer: Answer) -> Any:
    return [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer


SHAPE = Shape(
    (("chosen", "rejected"), ("chosen_ids", "rejected_ids"), *(("messages", name) for name in _OF_SWIFT)),
    (*_PROMPTS, *_OTHER_PROMPTS, TOKENIZED[0], *OPTIONAL, *ITEM_VALUES),
    parse,
)
