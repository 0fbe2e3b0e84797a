"""Flags that leave a message or a record out of the loss, in every spelling, from every kind of file."""

import json

import pytest

from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.types import Reject

from .helpers import ALPACA, PROMPT, TEXT, TOKENS, parse, read_all, reason
from .test_unused_keys import SAVE

ASKED = {"role": "user", "content": "Who?"}
PLAIN = [ASKED, {"role": "assistant", "content": "No."}, ASKED, {"role": "assistant", "content": "Yes."}]
YES_OR_NO = ("loss", "loss_mask", "train", "training", "trainable", "train_on")
LEFT_OUT = ("mask", "masked", "ignore")


def chat(first=None, second=None, **beside):
    """Two questions and answers, with keys of the answers and of the record."""
    turns = [ASKED, {**PLAIN[1], **(first or {})}, ASKED, {**PLAIN[3], **(second or {})}]
    return {"messages": turns, **beside}


def weights(record):
    """The weights of a conversation, whose messages are as they would be without flags."""
    document = parse(record)
    assert document.messages == PLAIN
    return document.weights


@pytest.mark.parametrize(("off", "on"), [(False, True), (0, 1), (0.0, 1.0), ("false", "true"), ("False", "True")])
def test_flags_of_messages(off, on):
    for flag in (*YES_OR_NO, "weight", "loss_weight"):
        assert weights(chat({flag: off}, {flag: on})) == (1, 0, 1, 1), flag
        assert weights(chat({flag: off})) == (1, 0, 1, 1), flag
    for flag in LEFT_OUT:
        assert weights(chat({flag: on}, {flag: off})) == (1, 0, 1, 1), flag


def test_flags_that_say_nothing():
    for flag in (*YES_OR_NO, *LEFT_OUT, "weight", "loss_weight"):
        assert weights(chat({flag: None}, {flag: None})) is None


def test_both_weights_are_numbers():
    assert weights(chat({"loss_weight": 0.25}, {"weight": 3, "train": True})) == (1, 0.25, 1, 3)


@pytest.mark.parametrize("form", SAVE)
def test_flags_from_every_kind_of_file(tmp_path, form):
    """Columns with nulls hold a float for each flag."""
    sharegpt = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "No.", "trainable": 0.0}]
    records = [
        {**chat({"loss": 0.0}, {"loss": 1.0}), "conversations": None},
        {"messages": None, "conversations": [*sharegpt, *sharegpt[:1], {"from": "gpt", "value": "Yes."}]},
        {**chat(loss_mask=[0, 0, 0, 1]), "conversations": None},
    ]
    documents, rejects = read_all(SAVE[form](tmp_path, records))
    assert not rejects
    found = [(document.weights[1], document.weights[3]) for document in documents]
    assert found == [(0, 1)] * 3
    assert all("loss" not in turn and "trainable" not in turn for each in documents for turn in each.messages)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"loss": True, "train": False}, '"loss" is true but "train" is false; these contradict each other, keep one'),
        ({"weight": 1, "masked": 1}, '"weight" is 1 but "masked" is 1; these contradict each other, keep one of them'),
        ({"weight": 2, "loss_weight": 3}, '"weight" is 2 but "loss_weight" is 3; these contradict each other'),
        ({"loss": 0.7}, '"loss" is 0.7, neither true nor false; write a weight as "weight", and remove anything else'),
        ({"train_on": "no"}, '"train_on" must be true or false, this is a string'),
        ({"ignore": [1]}, '"ignore" must be true or false, this is an array'),
        ({"loss_weight": -1}, '"loss_weight" is -1; a weight is 0, or from 1e-9 to 1e9'),
    ],
)
def test_flags_that_are_unclear(answer, expected):
    assert reason(chat(answer)).startswith(f"messages[1]: {expected}")


def test_other_messages_are_not_trained_on():
    assert parse({"messages": [{**ASKED, "loss": False, "weight": 1}, PLAIN[1]]}).weights == (0, 1)
    for flag, value in (("train", True), ("loss_mask", 1), ("mask", 0)):
        assert reason({"messages": [{**ASKED, flag: value}, PLAIN[1]]}) == (
            f'messages[0]: "{flag}" says that a message of role user is trained on, but hbpack trains on those of the '
            "assistant alone; remove it"
        )


@pytest.mark.parametrize("name", ["loss_mask", "train_on_turn", "weights", "loss_weights", "loss", "weight"])
def test_lists_beside_messages(name):
    assert weights(chat(**{name: [0, 0, 0, 1]})) == (0, 0, 0, 1)
    assert weights(chat(**{name: [0, 1]})) == (1, 0, 1, 1)
    answers = [{"role": "assistant", "content": text} for text in "ab"]
    assert parse({"messages": answers, name: [1, 0]}).weights == (1, 0)
    with_system = parse({**chat(), "system": "Be kind.", name: [1, 0]})
    assert with_system.weights == (1, 1, 1, 1, 0)
    assert reason(chat(**{name: [0, 1, 0]})) == (
        f'"{name}" has 3 values for 4 messages, 2 of them of the assistant; give one for each message, or for each of '
        "the assistant"
    )


def test_lists_and_messages_that_contradict_each_other():
    assert weights(chat({"loss": 0}, {"loss": True}, loss=[False, 1])) == (1, 0, 1, 1)
    assert reason(chat({"loss": True}, loss=[False, 1])) == (
        'messages[1]: "loss" differs from what "loss" says; keep one of them'
    )
    assert reason(chat({"weight": 0.5}, loss_mask=[0, 1])).startswith(
        'messages[1]: "weight" is 0.5 but "loss_mask" is 0; these contradict each other'
    )
    assert reason(chat(train_on_turn=True)) == (
        '"train_on_turn" must be an array with a value for each message, this is a boolean'
    )
    assert parse(chat(weights=[0.5, 2], loss_mask=[0, 1, 0, 1])).weights == (0, 0.5, 0, 2)


@pytest.mark.parametrize("record", [chat(), PROMPT, ALPACA, {"prompt": PLAIN[:1], "completion": PLAIN[1:2]}])
def test_flags_of_records(record):
    for flag in YES_OR_NO:
        assert (parse({**record, flag: False}).weight, parse({**record, flag: 1.0}).weight) == (0, 1)
    for flag in LEFT_OUT:
        assert (parse({**record, flag: True}).weight, parse({**record, flag: None}).weight) == (0, 1)
    assert parse({**record, "loss_weight": 0.5, "loss": True}).weight == 0.5
    assert reason({**record, "loss": 1.73}).startswith('"loss" is 1.73, neither true nor false')


def test_flags_of_pairs():
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    assert [each.weight for each in parse({**pair, "train": False}).branches] == [0, 0]
    chosen = [{**PLAIN[1], "loss": False}, ASKED, PLAIN[3]]
    document = parse({"prompt": [ASKED], "chosen": chosen, "rejected": PLAIN[1:2]})
    assert [each.weights for each in document.branches] == [(1, 0, 1, 1), None]
    asked = [ASKED, {**PLAIN[1], "loss": False}, ASKED]
    assert parse({"prompt": asked, "chosen": PLAIN[3:], "rejected": PLAIN[1:2]}).branches[0].weights is None


def test_flags_of_prompts():
    """What the assistant says in a prompt has no loss unless it says so itself."""
    asked = [ASKED, {**PLAIN[1], "train": False}, ASKED]
    document = parse({"prompt": asked, "completion": PLAIN[3:]})
    assert (document.num_prompt, document.weights) == (3, (1, 0, 1, 1))
    twice = [ASKED, {**PLAIN[1], "train": True}, ASKED, PLAIN[3], ASKED]
    document = parse({"prompt": twice, "completion": PLAIN[3:]})
    assert (document.num_prompt, document.weights) == (0, (1, 1, 1, 0, 1, 1))


def test_flags_of_plain_texts_are_counted():
    normalizer = Normalizer()
    assert not isinstance(normalizer.parse({**TEXT, "loss": 2.5, "train": False}, 1), Reject)
    assert dict(normalizer.unused) == {f'"{key}", which hbpack does not use': 1 for key in ("loss", "train")}
    assert normalizer.parse({**TEXT, "loss_weight": 0.5}, 1).weight == 0.5


def test_weights_of_tokenized_records(tmp_path):
    for form in ("jsonl", "parquet"):
        documents, rejects = read_all(
            SAVE[form](tmp_path, [{**TOKENS, "loss_weight": 0}, {**TOKENS, "loss_weight": 1}])
        )
        assert not rejects
        assert [sum(each.loss_mask) for each in documents] == [0, 2]
    pair = {"chosen_ids": [1, 2], "rejected_ids": [1, 3], "loss": "maybe"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair))
    assert [each.reason for each in read_all(tmp_path / "pairs.jsonl")[1]] == [
        '"loss" must be true or false, this is a string'
    ]
