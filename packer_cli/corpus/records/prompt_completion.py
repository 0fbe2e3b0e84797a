"""Prompt and completion: `{"prompt": ..., "completion": ...}`, or `response` for the latter.

Two strings, or two lists of messages (TRL's conversational form). The lists are joined into one
conversation of kind `messages`. As in TRL, what the assistant says in the prompt carries no loss; weights of the
prompt's messages overrule that.
"""

from __future__ import annotations

from typing import Any

from packer_cli.corpus.records.base import BadRecordError, Shape, type_name
from packer_cli.corpus.records.messages import read_tools, read_turns, take_prompt, take_weights
from packer_cli.corpus.records.weights import FLAGS, read_weight
from packer_cli.corpus.types import Document, Record


def parse(record: Record, line: int) -> Document:
    """Read one prompt with its completion; an empty prompt is fine, an empty completion is not."""
    key = "completion" if "completion" in record else "response"
    prompt, completion = record["prompt"], record[key]
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            raise BadRecordError(f'"{key}" is empty: there is nothing to train on')
        weight, tools = read_weight(record), read_tools(record.get("tools"))
        return Document("prompt-completion", line, tools=tools, prompt=prompt, completion=completion, weight=weight)
    if isinstance(prompt, list) and isinstance(completion, list):
        return _conversation(record, prompt, completion, key, line)
    for name, value in (("prompt", prompt), (key, completion)):
        if not isinstance(value, str | list):
            raise BadRecordError(f'"{name}" must be a string or an array of messages, this is {type_name(value)}')
    raise BadRecordError(f'"prompt" is {type_name(prompt)} but "{key}" is {type_name(completion)}; both must agree')


def _conversation(record: Record, prompt: list[Any], completion: list[Any], key: str, line: int) -> Document:
    turns, of_turns, has_loss = take_prompt(read_turns(prompt, "prompt"))
    answers, of_answers = take_weights(read_turns(completion, key), key)
    tools = read_tools(record.get("tools"))
    weight = read_weight(record)
    weights = None
    if of_turns or of_answers:
        weights = (of_turns or (1.0,) * len(turns)) + (of_answers or (1.0,) * len(answers))
    num_prompt = 0 if has_loss else len(turns)
    return Document(
        "messages", line, "", turns + answers, tools, weight=weight, weights=weights, num_prompt=num_prompt
    )


SHAPE = Shape((("prompt", "completion"), ("prompt", "response")), ("tools", *FLAGS), parse)
