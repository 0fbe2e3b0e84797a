"""Roles by other names, and calls of tools and their results that are messages of their own."""

from __future__ import annotations

import json

import pytest

from .helpers import parse, reason

CHAT_TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
CALL = '{"name": "f", "arguments": {"a": 1}}'


def calls(*names: str) -> list[dict]:
    return [{"type": "function", "function": {"name": name, "arguments": {"a": 1}}} for name in names]


@pytest.mark.parametrize("role", ["Assistant", "gpt", "MODEL", "bot", "ChatGPT"])
def test_other_names_of_roles(role: str) -> None:
    turns = [{"role": "System", "content": "s"}, {"role": "human", "content": "a"}, {"role": role, "content": "b"}]
    assert [turn["role"] for turn in parse({"messages": turns}).messages] == ["system", "user", "assistant"]
    from_turns = [{"from": "Human", "value": "a"}, {"from": role, "value": "b"}]
    assert parse({"conversations": from_turns}).messages == CHAT_TURNS
    assert parse({"prompt": turns[:2], "completion": turns[2:]}).messages[-1]["role"] == "assistant"


@pytest.mark.parametrize("role", ["developer", "function", "ipython", "observation", "critic", "Context"])
def test_free_roles_are_for_the_template(role: str) -> None:
    turns = [{"role": role, "content": "x"}, *CHAT_TURNS]
    assert parse({"messages": turns}).messages == turns


@pytest.mark.parametrize(
    "content", [CALL, json.loads(CALL), [json.loads(CALL)], CALL.replace("arguments", "parameters")]
)
def test_calls_and_results_as_messages(content: object) -> None:
    turns = [
        CHAT_TURNS[0],
        {"role": "tool_call", "content": content},
        {"role": "tool_response", "content": "2"},
        CHAT_TURNS[1],
    ]
    assert parse({"messages": turns}).messages == [
        CHAT_TURNS[0],
        {"role": "assistant", "content": "", "tool_calls": calls("f")},
        {"role": "tool", "content": "2"},
        CHAT_TURNS[1],
    ]


def test_calls_join_what_the_assistant_says_before_them() -> None:
    other = {"role": "Tool_Call", "content": CALL.replace('"f"', '"g"')}
    turns = [
        *CHAT_TURNS,
        {"role": "tool_call", "content": CALL},
        other,
        {"role": "tool", "content": "2"},
        other,
        other,
    ]
    document = parse({"messages": turns})
    assert document.weights is None
    assert document.messages == [
        CHAT_TURNS[0],
        {**CHAT_TURNS[1], "tool_calls": calls("f", "g")},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "", "tool_calls": calls("g", "g")},
    ]
    sharegpt = [
        {"from": {"assistant": "gpt"}.get(turn["role"], turn["role"]), "value": turn["content"]} for turn in turns
    ]
    assert parse({"conversations": sharegpt}).messages == document.messages


def test_flags_of_calls() -> None:
    call = {"role": "tool_call", "content": CALL}
    first = parse({"messages": [CHAT_TURNS[0], {**call, "loss": False}, call]})
    assert (first.weights, len(first.messages)) == ((1, 0), 2)
    said = {**CHAT_TURNS[1], "loss": False}
    both = parse({"messages": [CHAT_TURNS[0], said, {**call, "loss": False}], "weight": 2})
    assert (both.weights, both.weight) == ((1, 0), 2)
    assert parse({"messages": [*CHAT_TURNS, call], "loss_mask": [0, 1, 1]}).weights == (0, 1)
    why = "has another weight than the message whose calls it adds to"
    assert reason({"messages": [CHAT_TURNS[0], said, call]}) == f"messages[2]: {why}"
    assert reason({"messages": [*CHAT_TURNS, {**call, "loss": False}]}) == f"messages[2]: {why}"
    assert reason({"messages": [*CHAT_TURNS, call], "weights": [0, 1, 0.5]}) == f"messages[2]: {why}"
    for first_flag, last_flag in ((1, 0), (None, 0), (None, False), (2, 0.0)):
        calls = [{**call, "weight": first_flag}, {**call, "weight": last_flag}]
        assert reason({"messages": [CHAT_TURNS[0], *calls]}) == f"messages[2]: {why}"


@pytest.mark.parametrize("content", ["f(1)", "[1]", '{"arguments": {}}', None, 3])
def test_calls_that_are_no_calls(content: object) -> None:
    assert reason({"messages": [CHAT_TURNS[0], {"role": "tool_call", "content": content}]}) == (
        'messages[1]: a "tool_call" value must be JSON with "name" and "arguments", or an array of such'
    )
