"""Alpaca records: `{"instruction": "...", "input": "...", "output": "..."}`, in one of two forms.

template    a conversation for the chat template: the instruction, a blank line and the input are the user's message,
            the output is the assistant's answer. A `system` text and the pairs of LLaMA-Factory's `history`,
            `[["question", "answer"], ...]`, come before them.
stanford    a prompt and a completion, with the two prompts of the Stanford Alpaca project, word for word
            (github.com/tatsu-lab/stanford_alpaca, `train.py`)
"""

from __future__ import annotations

from typing import Any

from packer_cli.corpus.records.base import BadRecordError, Shape, read_string, type_name
from packer_cli.corpus.records.weights import FLAGS, read_weight
from packer_cli.corpus.types import AlpacaForm, Document, Message, Record

PROMPT_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)
PROMPT_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)


def parse_for_template(record: Record, line: int) -> Document:
    """Read one Alpaca record as a conversation."""
    instruction, context, output = _texts(record)
    system = read_string(record, "system", is_optional=True)
    messages = [{"role": "system", "content": system}] if system else []
    messages += _history(record.get("history"))
    weight = read_weight(record)
    question = "\n\n".join(part for part in (instruction, context) if part and not part.isspace())
    messages += [{"role": "user", "content": question}, {"role": "assistant", "content": output}]
    return Document("alpaca", line, messages=messages, weight=weight)


def parse_for_stanford(record: Record, line: int) -> Document:
    """Read one Alpaca record as a prompt and its completion; without an input it takes the prompt that has none."""
    instruction, context, output = _texts(record)
    weight = read_weight(record)
    for name in ("system", "history"):
        # Leaving them out would change the data unseen.
        if record.get(name):
            raise BadRecordError(f'"{name}" has no place in Stanford\'s prompt; --alpaca template has one')
    template = PROMPT_WITH_INPUT if context else PROMPT_WITHOUT_INPUT
    prompt = template.format(instruction=instruction, input=context)
    return Document("alpaca", line, prompt=prompt, completion=output, weight=weight)


def _texts(record: Record) -> tuple[str, str, str]:
    """Read instruction, input (empty where there is none) and output; raises BadRecordError with a reason."""
    instruction, output = read_string(record, "instruction"), read_string(record, "output")
    context = read_string(record, "input", is_optional=True)
    if not instruction.strip() and not context.strip():
        raise BadRecordError('"instruction" is empty')
    if not output:
        raise BadRecordError('"output" is empty: there is nothing to train on')
    return instruction, context, output


def _history(value: Any) -> list[Message]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRecordError(f'"history" must be an array of [question, answer] pairs, this is {type_name(value)}')
    messages = []
    for index, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise BadRecordError(f"history[{index}] must be a pair of strings, [question, answer]")
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return messages


_KEYS = ("instruction", "output")
_OPTIONAL = ("input", "system", "history", *FLAGS)
SHAPES: dict[AlpacaForm, Shape] = {
    "template": Shape((_KEYS,), _OPTIONAL, parse_for_template),
    "stanford": Shape((_KEYS,), _OPTIONAL, parse_for_stanford),
}
