"""Chat records: `messages` (OpenAI, TRL) and `conversations` (ShareGPT).

::

    {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...], "weight": 0.5}
    {"conversations": [{"from": "human", "value": "..."}, ...], "system": "...", "tools": "[...]"}

Other keys of a message (`tool_calls`, `reasoning_content`, `name`, ...) are kept for the chat template,
except for `weight` and the other flags of `weights`.
Price: about 0.1 us a message that is a plain role and content; the record's own list is handed on.
"""

from __future__ import annotations

from contextlib import suppress
from json import JSONDecodeError
from operator import is_
from typing import Any

from packer_cli.corpus.records.base import BadRecordError, Shape, as_list, read_json, read_string, require, type_name
from packer_cli.corpus.records.unused import TEXT_ONLY, check_turns
from packer_cli.corpus.records.weights import FLAGS, HAS_FLAGS, LISTS, WEIGHTS, YES_OR_NO, read_weight, stated_weight
from packer_cli.corpus.types import Document, Message, Record

SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
"""`from` of ShareGPT, in any case -> role."""
_CALLS = ("function_call", "tool_call")
"""LLaMA-Factory and ms-swift: what the assistant says, as JSON; several in a row are parallel calls."""
_OTHER_ROLES = {name: role for name, role in SHAREGPT_ROLES.items() if name != "observation"}
"""Role of a message, in any case -> its usual name. GLM-4's own template knows `observation`."""
_ROLES = frozenset(SHAREGPT_ROLES.values())
_CALL = "(call)"
"""For now, the role of a message made of `_CALLS`."""
ANSWERS = ("assistant", _CALL)


HAS_LISTS = frozenset(LISTS)


def read_turns(turns: Any, key: str) -> list[Message]:
    """Check a list of messages and give it back, ShareGPT entries turned into role and content.

    Raises BadRecordError, which names the first bad index and the rule.
    """
    turns = require(_from_text(turns), list, f'"{key}"', "an array of messages")
    if not turns:
        raise BadRecordError(f'"{key}" is empty: a conversation needs at least one message')
    if type(turns[0]) is str:
        turns = [_from_text(turn) for turn in turns]
    first = turns[0]
    read = _from_sharegpt if type(first) is dict and "role" not in first and "from" in first else _read_turn
    for turn in turns:
        try:
            if type(turn["content"]) is str and turn["role"] in _ROLES:
                continue
        except (KeyError, TypeError, IndexError):
            pass
        found = [read(turn, f"{key}[{index}]") for index, turn in enumerate(turns)]
        if not all(map(is_, found, turns)):
            return found
        break
    return turns  # type: ignore[no-any-return]


def _from_text(value: Any) -> Any:
    """Read a text that holds JSON, as columns of one type do; anything else as it is."""
    if type(value) is str:
        with suppress(JSONDecodeError):
            return read_json(value)
    return value


def _read_turn(turn: Any, where: str) -> Message:
    """Read everything but a usual role and string content: the slow path of `read_turns`."""
    require(turn, dict, where, "an object with a role and content")
    if "role" not in turn:
        raise BadRecordError(f'{where} has no "role"; its keys: {", ".join(turn) or "none"}')
    role = turn["role"]
    if not isinstance(role, str) or not role:
        what = "an empty string" if role == "" else type_name(role)
        raise BadRecordError(f'{where}: "role" must be a non-empty string, this is {what}')
    content = turn.get("content")
    name = role.lower()
    if name in _CALLS:
        return {**turn, "role": _CALL, "content": "", "tool_calls": _read_calls(content, where, name)}
    if content is None:
        if not turn.get("tool_calls") and not turn.get("function_call"):
            raise BadRecordError(f'{where} has no "content" and no "tool_calls"; its keys: {", ".join(turn)}')
    elif isinstance(content, list):
        for number, part in enumerate(content):
            _check_part(part, f"{where}.content[{number}]")
    else:
        require(content, str, f'{where}: "content"', "a string or an array of text parts")
    usual = _OTHER_ROLES.get(name, role)
    return turn if usual == role else {**turn, "role": usual}


def _check_part(part: Any, where: str) -> None:
    if not isinstance(part, dict):
        raise BadRecordError(f'{where} must be an object like {{"type": "text", "text": "..."}}')
    if part.get("type") != "text":
        raise BadRecordError(f'{where} is of type {part.get("type")!r}, and {TEXT_ONLY}: its "type" must be "text"')
    require(part.get("text"), str, f'{where}: "text"', "a string")


def _from_sharegpt(turn: Any, where: str) -> Message:
    require(turn, dict, where, 'an object with "from" and "value"')
    for name in ("from", "value"):
        if name not in turn:
            raise BadRecordError(f'{where} has no "{name}"')
        require(turn[name], str, f'{where}: "{name}"', "a string")
    speaker = turn["from"].lower()
    role = SHAREGPT_ROLES.get(speaker)
    if role is None:
        known = ", ".join(SHAREGPT_ROLES)
        raise BadRecordError(f'{where}: unknown "from" value {turn["from"]!r}; known are {known}')
    own: Message = {"role": role, "content": turn["value"]}
    if speaker in _CALLS:
        own = {"role": _CALL, "content": "", "tool_calls": _read_calls(turn["value"], where, speaker)}
    for name, value in own.items():
        if turn.get(name, value) not in (None, value):
            raise BadRecordError(f'{where}: "{name}" differs from what "from" and "value" say; keep one of them')
    return own | {name: value for name, value in turn.items() if name not in ("from", "value", *own)}


def _read_calls(calls: Any, where: str, name: str) -> list[Message]:
    """Read the calls of a message of a name in `_CALLS`: an object or an array of them, or JSON of such."""
    calls = _from_text(calls)
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls
    ):
        raise BadRecordError(
            f'{where}: a "{name}" value must be JSON with "name" and "arguments", or an array of such'
        )
    return [
        {
            "type": "function",
            "function": {"name": call["name"], "arguments": call.get("arguments", call.get("parameters", {}))},
        }
        for call in calls
    ]


def read_tools(value: Any) -> list[Any] | None:
    """Read `tools` of a record: an array, or the text of one, or of texts; None when there are none."""
    if value is None or value == "":
        return None
    value = _from_text(value)
    if isinstance(value, str):
        raise BadRecordError('"tools" is a string that is not JSON; it must hold an array')
    tools = [_from_text(tool) for tool in require(value, list, '"tools"', "an array of objects")]
    for index, tool in enumerate(tools):
        require(tool, dict, f"tools[{index}]", "an object")
    return tools or None


def take_weights(
    turns: list[Message], key: str, unstated: float = 1.0
) -> tuple[list[Message], tuple[float, ...] | None]:
    """Divide messages from their weights, which are not for the template; weights are None if no message has one.

    Calls that are messages of their own become part of the answer before them.

    Args:
        key: of the messages in the record, for errors.
        unstated: weight of what the assistant says without one, where another message has one.

    Raises:
        BadRecordError: as for `stated_weight` and `check_turns`, or a message of another role is to be trained on.
    """
    for turn in turns:
        if len(turn) > 2:
            break
    else:
        return turns, None
    check_turns(turns, key)
    if any(turn["role"] == _CALL for turn in turns):
        turns = _join_calls(turns, key)
    if all(HAS_FLAGS.isdisjoint(turn) for turn in turns):
        return turns, None
    weights = [_weight_of(turn, f"{key}[{index}]") for index, turn in enumerate(turns)]
    turns = [{name: value for name, value in turn.items() if name not in HAS_FLAGS} for turn in turns]
    if all(weight is None for weight in weights):
        return turns, None
    missing = (unstated if turn["role"] == "assistant" else 1.0 for turn in turns)
    return turns, tuple(other if weight is None else weight for weight, other in zip(weights, missing, strict=True))


def _join_calls(turns: list[Message], key: str) -> list[Message]:
    """Join calls that follow an answer or a call to that message."""
    joined: list[Message] = []
    was_call = False
    for index, turn in enumerate(turns):
        is_call = turn["role"] == _CALL
        if is_call and joined and joined[-1]["role"] == "assistant":
            last = joined[-1]
            flags, of_last = ({name: each.get(name) for name in FLAGS} for each in (turn, last))
            # Of calls in a row, the first says it.
            if flags != of_last and not (was_call and all(flag is None for flag in flags.values())):
                raise BadRecordError(f"{key}[{index}]: has another weight than the message whose calls it adds to")
            joined[-1] = {**turn, **last, "tool_calls": [*(last.get("tool_calls") or ()), *turn["tool_calls"]]}
        else:
            joined.append({**turn, "role": "assistant"} if is_call else turn)
        was_call = is_call
    return joined


def take_prompt(turns: list[Message]) -> tuple[list[Message], tuple[float, ...] | None, bool]:
    """Take the weights of a prompt, as `take_weights` does; what the assistant says there has no loss unless it has a
    weight. The last value says whether any has."""
    turns, weights = take_weights(turns, "prompt", unstated=0.0)
    pairs = zip(turns, weights or (), strict=False)
    return turns, weights, any(weight and turn["role"] == "assistant" for turn, weight in pairs)


def answered(prompt: Document, key: str, answer: list[Message]) -> Document:
    """Continue a prompt, whose weights are taken, by the messages of its answer."""
    turns, (own, weights) = prompt.messages, take_weights(answer, key)
    if prompt.weights or weights:
        weights = (prompt.weights or (1.0,) * len(turns)) + (weights or (1.0,) * len(own))
    return prompt._replace(messages=turns + own, weights=weights, num_prompt=len(turns))


def begin_with(system: str, turns: list[Message]) -> list[Message]:
    """Put the system's message before the others, unless it is empty or is the first of them.

    Raises:
        BadRecordError: the first is another one of the system.
    """
    if not system or turns[0] == {"role": "system", "content": system}:
        return turns
    if turns[0]["role"] == "system":
        raise BadRecordError('both "system" and a first message of role system; keep one of them')
    return [{"role": "system", "content": system}, *turns]


def _weight_of(turn: Message, where: str) -> float | None:
    """Return the weight that a message states."""
    if turn["role"] == "assistant":
        return stated_weight(turn, where)
    stated = stated_weight(turn, where, YES_OR_NO)
    if stated:
        flag = next(name for name in YES_OR_NO if turn.get(name) is not None)
        rule = f'"{flag}" says that a message of role {turn["role"]} is trained on'
        raise BadRecordError(f"{where}: {rule}, but hbpack trains on those of the assistant alone; remove it")
    return stated_weight(turn, where, WEIGHTS) if stated is None else stated


def _give_lists(turns: list[Message], key: str, record: Record) -> tuple[list[Message], Record]:
    """Give each message its value of the arrays beside the messages; return the record without these arrays.

    Raises BadRecordError where one fits neither all messages nor those of the assistant, or contradicts a message.
    """
    for name, flag in LISTS.items():
        values = as_list(record.get(name))
        if values is None or (name in HAS_FLAGS and not isinstance(values, list)):
            continue
        values = require(values, list, f'"{name}"', "an array with a value for each message")
        answers = [index for index, turn in enumerate(turns) if turn["role"] in ANSWERS]
        places = range(len(turns)) if len(values) == len(turns) else answers
        if len(values) != len(places):
            numbers = f"{len(values)} values for {len(turns)} messages, {len(answers)} of them of the assistant"
            raise BadRecordError(f'"{name}" has {numbers}; give one for each message, or for each of the assistant')
        turns = [*turns]
        for index, value in zip(places, values, strict=True):
            if turns[index].get(flag) not in (None, value):
                raise BadRecordError(f'{key}[{index}]: "{flag}" differs from what "{name}" says; keep one of them')
            turns[index] = {**turns[index], flag: value}
        record = {other: value for other, value in record.items() if other != name}
    return turns, record


def parse(record: Record, line: int) -> Document:
    """Read one chat record; `messages` wins where a record has both keys."""
    key = "messages" if "messages" in record else "conversations"
    turns = read_turns(record[key], key)
    if not HAS_LISTS.isdisjoint(record):
        turns, record = _give_lists(turns, key, record)
    turns, weights = take_weights(turns, key)
    begun = begin_with(read_string(record, "system", is_optional=True), turns)
    weights = weights and (1.0,) * (len(begun) - len(turns)) + weights
    tools = read_tools(record["tools"]) if "tools" in record else None
    return Document("messages", line, "", begun, tools, weight=read_weight(record), weights=weights)


SHAPE = Shape((("messages",), ("conversations",)), ("tools", "system", *LISTS), parse)
