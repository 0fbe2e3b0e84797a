"""Records whose values are texts.

text                 `{"text": "..."}`, or `content` where there is no `text`
prompt-completion    `{"prompt": ..., "completion": ...}`, or `response` for the latter: two strings, or two lists of
                     messages (TRL's conversational form), which are joined into one conversation of kind `messages`.
                     As in TRL, what the assistant says in the prompt carries no loss; weights of the prompt's
                     messages overrule that
alpaca               `{"instruction": "...", "input": "...", "output": "..."}`, in one of two forms:

template    a conversation for the chat template: the instruction, a blank line and the input are the user's message,
            the output is the assistant's answer. A `system` text and the pairs of LLaMA-Factory's `history`,
            `[["question", "answer"], ...]`, come before them.
stanford    a prompt and a completion, with the two prompts of the Stanford Alpaca project, word for word
            (github.com/tatsu-lab/stanford_alpaca, `train.py`)
"""

from __future__ import annotations

from typing import Any

from packer_cli.corpus.records.base import BadRecordError, Shape, read_string, require, type_name
from packer_cli.corpus.records.messages import answered, read_tools, read_turns, take_prompt
from packer_cli.corpus.records.weights import FLAGS, WEIGHTS, read_weight
from packer_cli.corpus.types import AlpacaForm, Document, Message, Record


def parse_text(record: Record, line: int) -> Document:
    """Read one text record; text of white space alone is rejected."""
    text = read_string(record, "text" if "text" in record else "content")
    # isspace alone: a strip would copy every long text.
    if not text or text.isspace():
        raise BadRecordError("empty text")
    return Document("text", line, text, weight=read_weight(record, names=WEIGHTS))


TEXT = Shape((("text",), ("content",)), ("role", *WEIGHTS), parse_text)


def parse_prompt(record: Record, line: int) -> Document:
    """Read one prompt with its completion; an empty prompt is fine, an empty completion is not."""
    key = "completion" if "completion" in record else "response"
    prompt, completion = record["prompt"], record[key]
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            raise BadRecordError(f'"{key}" is empty: there is nothing to train on')
        weight, tools = read_weight(record), read_tools(record.get("tools"))
        return Document("prompt-completion", line, tools=tools, prompt=prompt, completion=completion, weight=weight)
    if isinstance(prompt, list) and isinstance(completion, list):
        turns, weights, has_loss = take_prompt(read_turns(prompt, "prompt"))
        document = answered(Document("messages", line, "", turns, weights=weights), key, read_turns(completion, key))
        tools, weight = read_tools(record.get("tools")), read_weight(record)
        return document._replace(tools=tools, weight=weight, num_prompt=0 if has_loss else len(turns))
    for name, value in (("prompt", prompt), (key, completion)):
        if not isinstance(value, str):
            require(value, list, f'"{name}"', "a string or an array of messages")
    raise BadRecordError(f'"prompt" is {type_name(prompt)} but "{key}" is {type_name(completion)}; both must agree')


PROMPT = Shape((("prompt", "completion"), ("prompt", "response")), ("tools", *FLAGS), parse_prompt)


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
    messages = []
    for index, pair in enumerate(require(value, list, '"history"', "an array of [question, answer] pairs")):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise BadRecordError(f"history[{index}] must be a pair of strings, [question, answer]")
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return messages


_KEYS = ("instruction", "output")
_OPTIONAL = ("input", "system", "history", *FLAGS)
ALPACA: dict[AlpacaForm, Shape] = {
    "template": Shape((_KEYS,), _OPTIONAL, parse_for_template),
    "stanford": Shape((_KEYS,), _OPTIONAL, parse_for_stanford),
}
