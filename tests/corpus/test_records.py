"""Each record shape: what it becomes, and every reason to reject it."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest

from packer_cli.corpus.records.shapes import SHAPES, Normalizer
from packer_cli.corpus.records.token_rows import TokenRecord, read_records
from packer_cli.corpus.records.unused import TEXT_ONLY
from packer_cli.corpus.types import RecordSchema, Reject, TokenBatch

from .helpers import CHAT, PROMPT, SHAREGPT, TEXT, parse, reason

USER = {"role": "user", "content": "Hi"}


def read_tokens(record: dict) -> tuple[TokenBatch | None, list[Reject]]:
    result = Normalizer("auto").parse(record, 7)
    assert isinstance(result, TokenRecord), result
    return read_records([result])


def test_messages_are_handed_on_as_they_are() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Bo"}
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    turns = [{"role": "system", "content": ""}, parts, call, {"role": "tool", "content": "1"}, thought]
    document = parse({"messages": turns, "id": 3})
    assert document.kind == "messages"
    assert document.messages is turns
    assert document.tools is None


def test_sharegpt_becomes_roles() -> None:
    document = parse(
        {
            "system": "Be kind.",
            "tools": '[{"name": "f"}]',
            "conversations": [
                {"from": "human", "value": "Hi", "weight": 0.5},
                {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
                {"from": "observation", "value": "2"},
                {"from": "gpt", "value": "two"},
            ],
        }
    )
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert document.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    assert document.tools == [{"name": "f"}]
    assert document.weights == (1, 0.5, 1, 1, 1)


CHAT_TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": CHAT_TURNS},
        {"text": "a"},
        {"prompt": "a", "completion": "b"},
        {"prompt": CHAT_TURNS[:1], "completion": CHAT_TURNS[1:]},
        {"instruction": "a", "output": "b"},
    ],
)
def test_weights_of_records(record: dict) -> None:
    assert parse(record).weight == 1
    assert parse({**record, "weight": 0.25}).weight == 0.25
    assert parse({**record, "weight": 0}).weight == 0
    assert [parse({**record, "weight": weight}).weight for weight in (True, False, "false")] == [1, 0, 0]
    for weight, why in [
        (-1, '"weight" is -1; a weight is 0, or from 1e-9 to 1e9'),
        (float("nan"), '"weight" is nan; a weight is 0, or from 1e-9 to 1e9'),
        (1e-10, '"weight" is 1e-10; a weight is 0, or from 1e-9 to 1e9'),
        (10**400, '"weight" is 100000000000000000000000000...; a weight is 0, or from 1e-9 to 1e9'),
        ("1", '"weight" must be a number, this is a string'),
        ({}, '"weight" must be a number, this is an object'),
    ]:
        assert reason({**record, "weight": weight}) == why


def test_weights_of_messages() -> None:
    turns = [{**CHAT_TURNS[0], "weight": None}, {**CHAT_TURNS[1], "weight": 2}]
    document = parse({"messages": turns, "weight": 3})
    assert (document.messages, document.weight, document.weights) == (CHAT_TURNS, 3, (1, 2))
    document = parse({"prompt": CHAT_TURNS, "completion": turns[1:]})
    assert (document.messages, document.weights) == ([*CHAT_TURNS, CHAT_TURNS[1]], (1, 1, 2))
    wrong = {"messages": [CHAT_TURNS[0], {**CHAT_TURNS[1], "weight": -1}]}
    assert reason(wrong) == 'messages[1]: "weight" is -1; a weight is 0, or from 1e-9 to 1e9'


def test_conversations_may_hold_roles_and_messages_may_be_sharegpt() -> None:
    assert parse({"conversations": CHAT["messages"]}).messages == CHAT["messages"]
    assert parse({"messages": SHAREGPT["conversations"]}).messages == CHAT["messages"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": []}, '"messages" is empty: a conversation needs at least one message'),
        ({"messages": "Hi"}, '"messages" must be an array of messages, this is a string'),
        ({"messages": None}, '"messages" must be an array of messages, this is null'),
        ({"messages": [USER, "Hi"]}, "messages[1] must be an object with a role and content, this is a string"),
        ({"messages": [{"content": "Hi"}]}, 'messages[0] has no "role"; its keys: content'),
        (
            {"messages": [{"role": 1, "content": "Hi"}]},
            'messages[0]: "role" must be a non-empty string, this is a number',
        ),
        (
            {"messages": [{"role": "", "content": "Hi"}]},
            'messages[0]: "role" must be a non-empty string, this is an empty string',
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": None}]},
            'messages[1] has no "content" and no "tool_calls"; its keys: role, content',
        ),
        (
            {"messages": [USER, {"role": "assistant", "contnt": "Yes"}]},
            'messages[1] has no "content" and no "tool_calls"; its keys: role, contnt',
        ),
        (
            {"messages": [{"role": "user", "content": 3}]},
            'messages[0]: "content" must be a string or an array of text parts, this is a number',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            f'messages[0].content[0] is of type \'image\', and {TEXT_ONLY}: its "type" must be "text"',
        ),
        (
            {"messages": [{"role": "user", "content": ["Hi"]}]},
            'messages[0].content[0] must be an object like {"type": "text", "text": "..."}',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            'messages[0].content[0]: "text" must be a string, this is null',
        ),
        ({"messages": [USER], "tools": {}}, '"tools" must be an array of objects, this is an object'),
        ({"messages": [USER], "tools": "[f"}, '"tools" is a string that is not JSON; it must hold an array'),
        ({"messages": [USER], "tools": [1]}, "tools[0] must be an object, this is a number"),
        (
            {"conversations": [{"from": "human", "value": "a"}, 5]},
            'conversations[1] must be an object with "from" and "value", this is a number',
        ),
        ({"conversations": [{"from": "human"}]}, 'conversations[0] has no "value"'),
        (
            {"conversations": [{"from": "human", "value": 1}]},
            'conversations[0]: "value" must be a string, this is a number',
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}, USER]},
            'conversations[1] has no "from"',
        ),
        (
            {"conversations": [{"from": "function_call", "value": "f(1)"}]},
            'conversations[0]: a "function_call" value must be JSON with "name" and "arguments", or an array of such',
        ),
        (
            {"conversations": [{"from": "system", "value": "a"}], "system": "b"},
            'both "system" and a first message of role system; keep one of them',
        ),
    ],
)
def test_rejected_messages(record: dict, expected: str) -> None:
    assert reason(record) == expected


def test_other_keys_of_a_sharegpt_turn() -> None:
    """Those of messages may be there, as in merged tables, but not against `from` and `value`."""
    said = {"from": "human", "value": "Hi"}
    both = {"from": "gpt", "value": "Yo", "role": "assistant", "content": None, "tool_calls": None, "name": "Bo"}
    assert parse({"conversations": [said, both]}).messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo", "tool_calls": None, "name": "Bo"},
    ]
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {}}', "tool_calls": None}
    assert parse({"conversations": [said, call]}).messages[1]["tool_calls"][0]["function"]["name"] == "f"
    for name, value in (("content", "Ho"), ("role", "user")):
        assert reason({"conversations": [said, {**both, name: value}]}) == (
            f'conversations[1]: "{name}" differs from what "from" and "value" say; keep one of them'
        )


def test_a_system_prompt_beside_messages() -> None:
    system = {"role": "system", "content": "Be kind."}
    with_system = [system, *CHAT_TURNS]
    assert parse({"system": "Be kind.", "messages": CHAT_TURNS}).messages == with_system
    assert parse({"system": "Be kind.", "messages": with_system}).messages == with_system
    assert reason({"system": "Be brief.", "messages": with_system}) == (
        'both "system" and a first message of role system; keep one of them'
    )


def test_unknown_speaker_names_the_known() -> None:
    text = reason({"conversations": [{"from": "narrator", "value": "a"}]})
    assert text.startswith("conversations[0]: unknown \"from\" value 'narrator'; known are human, user, gpt,")


def test_prompt_completion() -> None:
    assert parse(PROMPT)[:6] == ("prompt-completion", 7, "", [], None, "1+2=")
    assert parse({"prompt": "", "response": "3"}).completion == "3"
    chat = parse({"prompt": [USER], "completion": [{"role": "assistant", "content": "Yo"}]})
    assert chat.kind == "messages"
    assert chat.messages == [USER, {"role": "assistant", "content": "Yo"}]
    assert (chat.num_prompt, chat.weights) == (1, None)
    weighted = parse({"prompt": [USER, {"role": "assistant", "content": "Yo", "weight": 0.5}], "completion": [USER]})
    assert (weighted.num_prompt, weighted.weights) == (0, (1.0, 0.5, 1.0))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "a", "response": ""}, '"response" is empty: there is nothing to train on'),
        ({"prompt": 1, "completion": "a"}, '"prompt" must be a string or an array of messages, this is a number'),
        (
            {"prompt": [USER], "completion": "a"},
            '"prompt" is an array but "completion" is a string; both must agree',
        ),
        ({"prompt": [USER], "completion": [{}]}, 'completion[0] has no "role"; its keys: none'),
    ],
)
def test_rejected_prompt_completion(record: dict, expected: str) -> None:
    assert reason(record) == expected


def test_text() -> None:
    assert parse(TEXT)[:3] == ("text", 7, TEXT["text"])
    assert parse({"content": "a", "url": "b"}).text == "a"
    for empty in ("", " \n\t"):
        assert reason({"text": empty}) == "empty text"
    assert reason({"text": 3}) == '"text" must be a string, this is a number'
    assert reason({"role": "user", "content": "a"}).startswith("no known record shape: has keys")


@pytest.mark.parametrize("as_array", [False, True])
def test_tokens(as_array: bool) -> None:
    def convert(values: list[int]) -> object:
        return np.array(values, dtype=np.int32) if as_array else values

    def check(record: dict, ids: list[int], mask: list[int] | None) -> None:
        batch, rejects = read_tokens({name: convert(values) for name, values in record.items()})
        assert not rejects
        assert batch.lines.tolist() == [7]
        assert list(batch.input_ids) == ids
        assert batch.loss_mask is None if mask is None else list(batch.loss_mask) == mask

    check({"input_ids": [5, 6]}, [5, 6], None)
    check({"input_ids": [5, 6], "labels": [-100, 6]}, [5, 6], [0, 1])
    check({"input_ids": [5, 6], "labels": [5, 6]}, [5, 6], None)
    check({"input_ids": [5, 6], "loss_mask": [1, 0]}, [5, 6], [1, 0])
    check({"input_ids": [5, 6], "assistant_masks": [True, False]}, [5, 6], [1, 0])
    check({"input_ids": [5, 6], "labels": [5, 6], "completion_mask": [0, 1]}, [5, 6], [0, 1])
    check({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}, [5, 6], None)
    check({"input_ids": [0, 5, 6], "attention_mask": [0, 1, 1], "labels": [-100, -100, 6]}, [5, 6], [0, 1])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"input_ids": []}, '"input_ids" is empty'),
        ({"input_ids": "5 6"}, '"input_ids" must be an array of integers, this is a string'),
        ({"input_ids": [5, 6.5]}, "input_ids[1] must be an integer, this is a number"),
        ({"input_ids": [True]}, "input_ids[0] must be an integer, this is a boolean"),
        ({"input_ids": [1, 0, False, 2]}, "input_ids[2] must be an integer, this is a boolean"),
        ({"input_ids": [1], "labels": [True]}, "labels[0] must be an integer, this is a boolean"),
        ({"input_ids": [1, 2], "loss_mask": [True, "1"]}, "loss_mask[1] must be an integer, this is a string"),
        ({"input_ids": [[1]]}, "input_ids[0] must be an integer, this is an array"),
        ({"input_ids": [5, -1]}, "input_ids[1] is -1; an id must be in 0..2147483647"),
        ({"input_ids": [2**31]}, "input_ids[0] is 2147483648; an id must be in 0..2147483647"),
        ({"input_ids": [2**64]}, '"input_ids" holds an integer beyond 64 bits'),
        (
            {"input_ids": [5, 6], "labels": [5]},
            '"labels" has 1 entries but "input_ids" has 2; they must be equal',
        ),
        (
            {"input_ids": [5, 6], "labels": [-100, 7]},
            "labels[1] is 7 but input_ids[1] is 6; a label must be its own token, or -100 for no loss",
        ),
        ({"input_ids": [5, 6], "loss_mask": [0, 2]}, "loss_mask[1] is 2; a mask holds only 0 and 1"),
        (
            {"input_ids": [5], "attention_mask": [0]},
            '"attention_mask" is all zeros: the record is nothing but padding',
        ),
    ],
)
def test_rejected_tokens(record: dict, expected: str) -> None:
    _, rejects = read_tokens(record)
    assert rejects == [Reject(7, expected)]


def test_unknown_shape_names_the_keys_and_the_known_shapes() -> None:
    assert reason({"question": "a", "url": 1}) == (
        'no known record shape: has keys "question", "url"; expected one of "input_ids", "chosen" and "rejected", '
        '"prompt" and "completions", "messages", "instruction" and "output", "prompt" and "completion", "text", ... '
        "(docs/data.md)"
    )
    assert "has keys none; expected" in reason({})
    assert '"k9", and 2 more; expected' in reason({f"k{i}": 0 for i in range(12)})


@pytest.mark.parametrize(
    ("schema", "wrong", "expected"),
    [
        ("messages", TEXT, 'not a messages record: has keys "text"; needs "messages" or "conversations"'),
        ("text", PROMPT, 'not a text record: has keys "prompt", "completion"; needs "text" or "content"'),
        ("tokens", TEXT, 'not a tokens record: has keys "text"; needs "input_ids"'),
        ("alpaca", TEXT, 'not a alpaca record: has keys "text"; needs "instruction" and "output"'),
    ],
)
def test_an_explicit_schema_takes_no_other(schema: str, wrong: dict, expected: str) -> None:
    assert reason(wrong, schema).replace("not an alpaca", "not a alpaca") == expected


def test_an_explicit_schema_picks_among_shapes() -> None:
    both = {**CHAT, **TEXT}
    assert parse(both).kind == "messages"
    assert parse(both, "text").kind == "text"


def test_null_keys_count_as_absent() -> None:
    record = {"messages": None, "text": "a", "prompt": None}
    assert parse(record).text == "a"
    assert reason({"messages": None, "text": None}) == '"messages" must be an array of messages, this is null'


def test_registry() -> None:
    assert set(SHAPES) == set(get_args(RecordSchema))


@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_messages_and_tools_as_text(key: str) -> None:
    turns = CHAT_TURNS if key == "messages" else [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    tools = [{"name": "f", "default": 2**64}]
    for value in (json.dumps(turns), [json.dumps(turn) for turn in turns]):
        for given in (json.dumps(tools), [json.dumps(tool) for tool in tools]):
            document = parse({key: value, "tools": given})
            assert (document.messages, document.tools) == (CHAT_TURNS, tools)
    assert reason({key: '{"role": "user"}'}) == f'"{key}" must be an array of messages, this is an object'
    assert reason({key: ["Hi"]}) == f"{key}[0] must be an object with a role and content, this is a string"
    assert reason({key: turns, "tools": ["f"]}) == "tools[0] must be an object, this is a string"


@pytest.mark.parametrize(
    ("record", "keys"),
    [
        ({"mesages": []}, '"messages"'),
        ({"Messages": [], "tools": []}, '"messages"'),
        ({"instructions": "a", "outputs": "b"}, '"instruction" and "output"'),
        ({"promt": "a", "completion": "b"}, '"prompt"'),
        ({"conversation": []}, '"conversations"'),
    ],
)
def test_keys_that_are_nearly_right(record: dict, keys: str) -> None:
    assert reason(record).endswith(f"(docs/data.md); did you mean {keys}?")


def test_keys_that_are_not_nearly_right() -> None:
    assert "did you mean" not in reason({"question": "a", "context": "b", "answer": "c", "id": 1})
    assert reason({"mesages": []}, "messages").endswith(
        '; needs "messages" or "conversations"; did you mean "messages"?'
    )
    assert "did you mean" not in reason({"messages": [], "title": ""}, "alpaca")
