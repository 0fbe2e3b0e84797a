"""Several answers to one prompt: what preference pairs and groups of completions are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from packer_cli.corpus.records.base import BadRecordError, read_string, type_name
from packer_cli.corpus.records.messages import begin_with, read_tools, read_turns, take_prompt, take_weights
from packer_cli.corpus.records.weights import FLAGS
from packer_cli.corpus.types import Document, Message, Record, RecordSchema

Answer = str | list[Message]
OPTIONAL = ("tools", "system", *FLAGS)
"""Keys that `answers_to` reads."""


def read_answer(value: Any, where: str) -> Answer:
    """Read an answer or a prompt: a text, or messages, of which one may stand alone.

    Raises:
        BadRecordError: it is something else.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return read_turns([value], where)
    if isinstance(value, list):
        return read_turns(value, where)
    raise BadRecordError(f'"{where}" must be a string or an array of messages, this is {type_name(value)}')


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
    return tuple(
        _answered(Document(kind, line, messages=turns, tools=tools, weight=weight), *answer)
        for answer, weight in zip(answers, weights, strict=True)
    )


def _answered(prompt: Document, where: str, answer: Answer) -> Document:
    turns = prompt.messages
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    own, weights = take_weights(answer, where)
    if weights is not None:
        weights = (1.0,) * len(turns) + weights
    return prompt._replace(messages=[*turns, *own], weights=weights, num_prompt=len(turns))


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
