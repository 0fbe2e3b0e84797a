"""Several answers to one prompt: preference pairs, a better and a worse answer, and groups of completions.

::

    {"prompt": ..., "chosen": ..., "rejected": ...}             texts, or messages (TRL)
    {"chosen": ..., "rejected": ...}                            the prompt is what they begin with (TRL)
    {"conversations": [...], "chosen": {...}, "rejected": {...}}        or `messages` (LLaMA-Factory)
    {"messages": [...], "rejected_response": "..."}             or `rejected_messages`, a whole conversation (ms-swift)
    {"instruction": "...", "chosen": "...", "rejected": "..."}  with the other keys of Alpaca records (LLaMA-Factory)
    {"prompt_ids": [...], "chosen_ids": [...], "rejected_ids": [...]}   tokenized, see `token_rows`
    {"prompt": ..., "completions": ["...", ...], "rewards": [0.5, ...], "weights": [1, ...]}    a group

A prompt and an answer are texts, or messages, of which an answer may be one alone. What a pair brings: `margin`,
`ref_chosen_logps`, `ref_rejected_logps`. The `weights` of a group say how much the loss of each completion counts, to
be multiplied with `weight`; its `rewards` are kept for the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from packer_cli.corpus.records.base import BadRecordError, Shape, as_list, read_string, require, type_name
from packer_cli.corpus.records.messages import ANSWERS, answered, begin_with, read_tools, read_turns, take_prompt
from packer_cli.corpus.records.texts import ALPACA
from packer_cli.corpus.records.token_rows import PAIR_IDS, TokenRecord
from packer_cli.corpus.records.weights import FLAGS, HAS_FLAGS, WEIGHT, read_weight
from packer_cli.corpus.types import AlpacaForm, Document, Message, Record, RecordSchema
from packer_cli.format.constants import ITEM_VALUES

Answer = str | list[Message]
OPTIONAL = ("tools", "system", *FLAGS)
"""Keys that `answers_to` reads."""
_ANSWERS = ("chosen", "rejected")
_PROMPTS = ("prompt", "messages", "conversations")
_ALPACA = ("instruction", "input", "history")
_QUESTION = "question"
"""Holds the prompt in other data sets."""
_OF_SWIFT = ("rejected_response", "rejected_messages")


def read_answer(value: Any, where: str) -> Answer:
    """Read an answer or a prompt: a text, or messages, of which one may stand alone.

    Raises:
        BadRecordError: it is something else.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return read_turns([value], where)
    return read_turns(require(value, list, f'"{where}"', "a string or an array of messages"), where)


def answers_to(
    kind: RecordSchema,
    record: Record,
    line: int,
    prompt: Answer,
    answers: Sequence[tuple[str, Answer]],
    weights: Sequence[float],
) -> tuple[Document, ...]:
    """Make a document for each answer, of which only the answer has a loss.

    Args:
        prompt: a text for answers that are texts, or messages.
        answers: each with its place in the record, for errors.
        weights: of each answer.

    Raises:
        BadRecordError: the prompt and the answers do not go together.
    """
    tools, system = read_tools(record.get("tools")), read_string(record, "system", is_optional=True)
    if isinstance(prompt, str) and not any(isinstance(answer, str) for _, answer in answers):
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, str):
        if system:
            raise BadRecordError('"system" has no place in a prompt that is a string; write "prompt" as messages')
        for where, answer in answers:
            if not isinstance(answer, str):
                raise BadRecordError(
                    f'"{where}" must be a string, as the other answers are; this is {type_name(answer)}'
                )
        texts = [str(answer) for _, answer in answers]
        return tuple(
            Document(kind, line, prompt=prompt, completion=text, tools=tools, weight=weight)
            for text, weight in zip(texts, weights, strict=True)
        )
    turns, _, has_loss = take_prompt(prompt)
    if has_loss:
        raise BadRecordError('a message of the prompt has a "weight", but only answers have a loss; remove it')
    turns = begin_with(system, turns)
    prompts = (Document(kind, line, messages=turns, tools=tools, weight=weight) for weight in weights)
    return tuple(
        answered(begun, where, [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer)
        for begun, (where, answer) in zip(prompts, answers, strict=True)
    )


def common_beginning(one: Answer, other: Answer) -> int:
    """Count what two answers that are whole conversations or texts have in common, by TRL's rule (`extract_prompt`).

    The rule leaves something of each, and of a text, a space before an answer belongs to the answer.

    >>> common_beginning("Two and two is four.", "Two and two is 5.")
    14
    """
    shortest = min(len(one), len(other))
    num_shared = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if num_shared is None:
        return max(shortest - 1, 0)
    return num_shared - 1 if num_shared and one[num_shared - 1] == " " else num_shared


def read_number(value: Any, where: str) -> float:
    """Read a finite number.

    Raises:
        BadRecordError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        shown = type_name(value) if not isinstance(value, float) else str(value)
        raise BadRecordError(f'"{where}" must be a finite number, this is {shown}')
    return float(value)


def parse_group(record: Record, line: int) -> Document:
    """Read one group."""
    if record.get("labels") is not None:
        raise BadRecordError('"labels" makes "completions" the steps of one answer, which hbpack does not support')
    prompt = read_answer(record["prompt"], "prompt")
    given = require(record["completions"], list, '"completions"', "an array")
    if not given:
        raise BadRecordError('"completions" is empty: there is nothing to train on')
    names = [f"completions[{index}]" for index in range(len(given))]
    answers = [(name, read_answer(value, name)) for name, value in zip(names, given, strict=True)]
    rewards = tuple(read_number(value, f"rewards[{i}]") for i, value in enumerate(_of_each(record, "rewards", given)))
    weight = read_weight(record)
    of_each = [
        read_weight({WEIGHT: value}, f"weights[{i}]") for i, value in enumerate(_of_each(record, "weights", given))
    ]
    weights = [weight * each for each in of_each] or [weight] * len(given)
    branches = answers_to("completions", record, line, prompt, answers, weights)
    return Document("completions", line, branches=branches, rewards=rewards)


def _of_each(record: Record, key: str, completions: list[Any]) -> list[Any]:
    """Read the values of an array that has one for each completion; none where there is no array."""
    values = record.get(key)
    if values is None:
        return []
    values = require(as_list(values), list, f'"{key}"', "an array of numbers")
    if len(values) != len(completions):
        raise BadRecordError(
            f'"{key}" has {len(values)} entries but "completions" has {len(completions)}; they must be equal'
        )
    return values


GROUP = Shape((("prompt", "completions"),), ("rewards", "weights", "labels", *OPTIONAL), parse_group)


def parse_pair(record: Record, line: int, alpaca_form: AlpacaForm = "stanford") -> Document | TokenRecord:
    """Read one pair; a tokenized one is only recognized."""
    if "chosen" not in record and "chosen_ids" in record:
        return TokenRecord(line, record, read_values(record))
    if "instruction" in record and isinstance(record.get("chosen"), str) and not any(map(record.get, _PROMPTS)):
        branches = tuple(_of_alpaca(record, line, name, alpaca_form) for name in _ANSWERS)
        return Document("preference", line, branches=branches, values=read_values(record))
    prompt, chosen, rejected = _of_swift(record) if "chosen" not in record else _of_answers(record)
    weight = read_weight(record)
    answers = list(zip(_ANSWERS, (chosen, rejected), strict=True))
    branches = answers_to("preference", record, line, prompt, answers, (weight, weight))
    return Document("preference", line, branches=branches, values=read_values(record))


def read_values(record: Record) -> dict[str, float]:
    """Read the values that an item brings, by the names in `ITEM_VALUES`.

    Raises:
        BadRecordError: a value is not a number, or a log-probability lacks the other.
    """
    logps = ("ref_chosen_logps", "ref_rejected_logps")
    missing = [name for name in logps if record.get(name) is None]
    if len(missing) == 1:
        raise BadRecordError(f'"{missing[0]}" is missing; give both {" and ".join(logps)}, or neither')
    return {name: read_number(record[name], name) for name in ITEM_VALUES if record.get(name) is not None}


def _of_alpaca(record: Record, line: int, name: str, form: AlpacaForm) -> Document:
    """Make one answer of a pair whose prompt is that of an Alpaca record."""
    if not read_string(record, name):
        raise BadRecordError(f'"{name}" is empty: there is nothing to train on')
    document = ALPACA[form].parse({**record, "output": record[name]}, line)
    num_prompt = len(document.messages) - 1 if document.messages else 0
    answer: Document = document._replace(
        kind="preference", num_prompt=num_prompt, tools=read_tools(record.get("tools"))
    )
    return answer


def _of_answers(record: Record) -> tuple[Answer, Answer, Answer]:
    """Return prompt, chosen and rejected of a record that has the latter two."""
    chosen, rejected = (read_answer(record[name], name) for name in _ANSWERS)
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise BadRecordError(
            f'"chosen" is {type_name(chosen)} but "rejected" is {type_name(rejected)}; both must agree'
        )
    key = next((name for name in _PROMPTS if name in record), None)
    if key is None:
        return _divided(record, chosen, rejected)
    prompt = read_answer(record[key], key) if key == "prompt" else read_turns(record[key], key)
    if key == "prompt" and (isinstance(chosen, str) or not isinstance(prompt, str)):
        return prompt, chosen, rejected
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return _after(turns, chosen, rejected, record)


def _after(turns: list[Message], chosen: Answer, rejected: Answer, record: Record) -> tuple[Answer, Answer, Answer]:
    """Divide answers that may continue a prompt, or repeat it and are whole conversations."""
    if not isinstance(chosen, str) and not isinstance(rejected, str):
        asked = _first(turns)
        if asked is not None and asked == _first(chosen) == _first(rejected):
            return _divided(record, chosen, rejected)
    return turns, chosen, rejected


def _first(turns: list[Message]) -> Message | None:
    """Return the first message after a system message."""
    return next((turn for turn in _said(turns) if turn["role"] != "system"), None)


def _said(turns: list[Message]) -> list[Message]:
    """Return the messages without flags and nulls, which may differ where two answers begin alike."""
    return [{k: v for k, v in turn.items() if v is not None and k not in HAS_FLAGS} for turn in turns]


def _divided(record: Record, chosen: Answer, rejected: Answer) -> tuple[Answer, Answer, Answer]:
    """Divide answers that begin with the prompt."""
    if isinstance(chosen, str) and record.get(_QUESTION):
        raise BadRecordError(f'it has no "prompt"; if "{_QUESTION}" is the prompt, rename it to "prompt"')
    one, other = (answer if isinstance(answer, str) else _said(answer) for answer in (chosen, rejected))
    border = common_beginning(one, other)
    if not isinstance(chosen, str) and not border:
        if one == other:
            raise BadRecordError('"chosen" and "rejected" are the same messages, without an answer')
        if one[0] == other[0]:
            shorter = _ANSWERS[len(chosen) > len(rejected)]
            raise BadRecordError(f'"{shorter}" has no answer after the prompt that both begin with')
        raise BadRecordError(
            '"chosen" and "rejected" begin with different messages, so they have no prompt in common; give "prompt"'
        )
    prompts = [answer[:border] for answer in (chosen, rejected)]
    with_loss = [prompt for prompt in prompts if not isinstance(prompt, str) and take_prompt(prompt)[2]]
    return (with_loss or prompts)[0], chosen[border:], rejected[border:]


def _of_swift(record: Record) -> tuple[Answer, Answer, Answer]:
    """Divide `messages` that hold the better answer: all that follows the last message of the user."""
    turns = read_turns(record["messages"], "messages")
    if record.get("rejected_response") is None:
        return _divided(record, turns, read_turns(record["rejected_messages"], "rejected_messages"))
    border = max((place for place, turn in enumerate(turns, 1) if turn["role"] == "user"), default=0)
    if not border or turns[-1]["role"] not in ANSWERS:
        raise BadRecordError(
            '"messages" must end with the answer of the assistant that "rejected_response" is worse than, after a '
            "message of the user"
        )
    return turns[:border], turns[border:], read_answer(record["rejected_response"], "rejected_response")


_KEYS = (("chosen", "rejected"), ("chosen_ids", "rejected_ids"), *(("messages", name) for name in _OF_SWIFT))
_OPTIONAL = (*_PROMPTS, *_ALPACA, _QUESTION, PAIR_IDS[0], *OPTIONAL, *ITEM_VALUES)
PAIR: dict[AlpacaForm, Shape] = {
    form: Shape(_KEYS, _OPTIONAL, partial(parse_pair, alpaca_form=form)) for form in ALPACA
}
