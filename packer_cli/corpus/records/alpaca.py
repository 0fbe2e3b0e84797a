"""Alpaca records: `{"instruction": "...", "input": "...", "output": "..."}`.

They become a prompt and a completion with the two prompts of the Stanford Alpaca project, word for word
(github.com/tatsu-lab/stanford_alpaca, `train.py`). For a chat template, write the data as `messages`.
"""

from __future__ import annotations

from packer_cli.corpus.records.base import Record, Shape, type_name
from packer_cli.corpus.types import Document, Reject

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


def parse(record: Record, line: int) -> Document | Reject:
    """Read one Alpaca record; an empty or missing input takes the prompt without one."""
    instruction, output, context = record["instruction"], record["output"], record.get("input")
    for name, value in (("instruction", instruction), ("output", output), ("input", context)):
        if not isinstance(value, str) and not (name == "input" and value is None):
            return Reject(line, f'"{name}" must be a string, this is {type_name(value)}')
    if not instruction.strip() and not (context and context.strip()):
        return Reject(line, '"instruction" is empty')
    if not output:
        return Reject(line, '"output" is empty: there is nothing to train on')
    for name in ("system", "history"):
        # The prompt has no place for them, and leaving them out would change the data unseen.
        if record.get(name):
            return Reject(line, f'"{name}" has no place in the Alpaca prompt; write the record as "messages"')
    template = PROMPT_WITH_INPUT if context else PROMPT_WITHOUT_INPUT
    prompt = template.format(instruction=instruction, input=context)
    return Document("prompt-completion", line, prompt=prompt, completion=output)


SHAPE = Shape((("instruction", "output"),), ("input", "system", "history"), parse)
