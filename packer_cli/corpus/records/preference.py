"""Preference pairs: a better and a worse answer to one prompt.

::

    {"prompt": ..., "chosen": ..., "rejected": ...}             texts, or messages (TRL)
    {"chosen": ..., "rejected": ...}                            the prompt is what they begin with (TRL)
    {"conversations": [...], "chosen": {...}, "rejected": {...}}        or `messages` (LLaMA-Factory)
    {"messages": [...], "rejected_response": "..."}             or `rejected_messages`, a whole conversation (ms-swift)
    {"instruction": "...", "chosen": "...", "rejected": "..."}  with the other keys of Alpaca records (LLaMA-Factory)
    {"prompt_ids": [...], "chosen_ids": [...], "rejected_ids": [...]}   tokenized, see `token_pairs`

An answer may be a message alone. What the item brings: `margin`, `ref_chosen_logps`, `ref_rejected_logps`.
"""

from __future__ import annotations

from functools import partial

from packer_cli.corpus.records import alpaca
from packer_cli.corpus.records.answers import OPTIONAL, Answer, answers_to, common_beginning, read_answer, read_number
from packer_cli.corpus.records.base import BadRecordError, Shape, read_string, type_name
from packer_cli.corpus.records.messages import ANSWERS, read_tools, read_turns, take_prompt
from packer_cli.corpus.records.tokens import TokenRecord
from packer_cli.corpus.records.weights import HAS_FLAGS, read_weight
from packer_cli.corpus.types import AlpacaForm, Document, Message, Record
from packer_cli.format.constants import ITEM_VALUES

_ANSWERS = ("chosen", "rejected")
_PROMPTS = ("prompt", "messages", "conversations")
_ALPACA = ("instruction", "input", "history")
_QUESTION = "question"
"""Holds the prompt in other data sets."""
_OF_SWIFT = ("rejected_response", "rejected_messages")
TOKENIZED = ("prompt_ids", "chosen_ids", "rejected_ids")


def parse(record: Record, line: int, alpaca_form: AlpacaForm = "stanford") -> Document | TokenRecord:
    """Read one pair; a tokenized one is only recognized."""
    if "chosen" not in record and "chosen_ids" in record:
        return TokenRecord(line, record, is_pair=True)
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
    document = alpaca.SHAPES[form].parse({**record, "output": record[name]}, line)
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
_OPTIONAL = (*_PROMPTS, *_ALPACA, _QUESTION, TOKENIZED[0], *OPTIONAL, *ITEM_VALUES)
SHAPES: dict[AlpacaForm, Shape] = {
    form: Shape(_KEYS, _OPTIONAL, partial(parse, alpaca_form=form)) for form in alpaca.SHAPES
}
