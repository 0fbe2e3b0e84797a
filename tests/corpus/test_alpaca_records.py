"""Alpaca records: Stanford's prompt, or a conversation; and every reason to reject them."""

from __future__ import annotations

import pytest

from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.types import Document, Reject

from .helpers import ALPACA, parse, reason


def test_alpaca_takes_the_standard_prompt() -> None:
    document = parse(ALPACA)
    assert document.kind == "alpaca"
    assert document.prompt == (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:"
    )
    assert document.completion == "3"
    for context in ({}, {"input": ""}, {"input": None}):
        assert parse({"instruction": "Say {x}.", "output": "x", "text": "all", **context}).prompt == (
            "Below is an instruction that describes a task. "
            "Write a response that appropriately completes the request.\n\n"
            "### Instruction:\nSay {x}.\n\n### Response:"
        )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"output": ""}, '"output" is empty: there is nothing to train on'),
        ({"output": 3}, '"output" must be a string, this is a number'),
        ({"instruction": " ", "input": ""}, '"instruction" is empty'),
        ({"input": ["a"]}, '"input" must be a string, this is an array'),
        (
            {"history": [["a", "b"]]},
            '"history" has no place in Stanford\'s prompt; --alpaca template has one',
        ),
    ],
)
def test_rejected_alpaca(change: dict, expected: str) -> None:
    assert reason({**ALPACA, **change}) == expected


def chat_of(record: dict) -> list:
    document = Normalizer("auto", "template").parse(record, 7)
    assert isinstance(document, Document), document
    assert (document.kind, document.line) == ("alpaca", 7)
    return [(message["role"], message["content"]) for message in document.messages]


def test_alpaca_as_a_conversation() -> None:
    assert chat_of(ALPACA) == [("user", "Add.\n\n1 2"), ("assistant", "3")]
    for context in ({}, {"input": ""}, {"input": " \n"}, {"input": None}):
        assert chat_of({"instruction": "Say {x}.", "output": "x", **context}) == [
            ("user", "Say {x}."),
            ("assistant", "x"),
        ]
    assert chat_of({"instruction": "", "input": "1 2", "output": "3"})[0] == ("user", "1 2")
    assert chat_of({**ALPACA, "system": "Be brief.", "history": [["Hi", "Hello"], ["a", "b"]]}) == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "Add.\n\n1 2"),
        ("assistant", "3"),
    ]
    assert len(chat_of({**ALPACA, "system": "", "history": []})) == len(chat_of({**ALPACA, "history": None})) == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"output": ""}, '"output" is empty: there is nothing to train on'),
        ({"instruction": " ", "input": ""}, '"instruction" is empty'),
        ({"system": 5}, '"system" must be a string, this is a number'),
        ({"history": "x"}, '"history" must be an array of [question, answer] pairs, this is a string'),
        ({"history": [["a", "b"], ["c"]]}, "history[1] must be a pair of strings, [question, answer]"),
        ({"history": [["a", 5]]}, "history[0] must be a pair of strings, [question, answer]"),
    ],
)
def test_rejected_alpaca_conversation(change: dict, expected: str) -> None:
    assert Normalizer("auto", "template").parse({**ALPACA, **change}, 7) == Reject(7, expected)
