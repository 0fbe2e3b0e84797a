"""Preference pairs and groups of completions: every form, and why records are rejected."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.ragged import join_samples
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.records.answers import common_beginning
from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.records.texts import PROMPT_WITH_INPUT
from packer_cli.corpus.types import DocumentBatch, Reject

from .helpers import ALPACA, CHAT, PROMPT, TEXT, TOKENS, parse, reason
from .test_unused_keys import SAVE

USER, CALL = {"role": "user", "content": "Hi"}, {"role": "user", "content": "Bye"}
GOOD, BAD = {"role": "assistant", "content": "Hello"}, {"role": "assistant", "content": "What"}
TEXTS = {"prompt": "1+2=", "chosen": "3", "rejected": "4"}
TOKEN_PAIR = {"prompt_ids": [1, 2], "chosen_ids": [3, 4], "rejected_ids": [5]}


def messages_of(record, **options):
    """The conversations of a record, and how many messages are their prompt."""
    branches = parse(record, **options).branches
    (num_prompt,) = {branch.num_prompt for branch in branches}
    return [branch.messages for branch in branches], num_prompt


def test_texts():
    document = parse({**TEXTS, "weight": 0.5, "margin": 2, "ref_chosen_logps": -1.5, "ref_rejected_logps": 0})
    assert document.kind == "preference"
    assert [(each.prompt, each.completion, each.weight) for each in document.branches] == [
        ("1+2=", "3", 0.5),
        ("1+2=", "4", 0.5),
    ]
    assert document.values == {"margin": 2.0, "ref_chosen_logps": -1.5, "ref_rejected_logps": 0.0}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER], "chosen": GOOD, "rejected": BAD},
        {"prompt": [USER], "chosen": "Hello", "rejected": "What"},
        {"prompt": "Hi", "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "Hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"messages": [USER], "chosen": GOOD, "rejected": BAD},
        {"messages": [USER, GOOD], "chosen": [USER, GOOD], "rejected": [USER, BAD], "prompt": "Hi"},
        {"messages": [USER, GOOD], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {
            "conversations": [{"from": "human", "value": "Hi"}],
            "chosen": {"from": "gpt", "value": "Hello"},
            "rejected": {"from": "gpt", "value": "What"},
        },
        {"messages": [USER, GOOD], "rejected_response": "What"},
        {"messages": [USER, GOOD], "rejected_messages": [USER, BAD]},
    ],
)
def test_every_form_of_a_pair_of_messages(record):
    assert messages_of(record) == ([[USER, GOOD], [USER, BAD]], 1)
    system = {"role": "system", "content": "Be brief."}
    tools = [{"type": "function", "function": {"name": "f"}}]
    both = {**record, "system": "Be brief.", "tools": tools}
    assert messages_of(both) == ([[system, USER, GOOD], [system, USER, BAD]], 2)
    assert [each.tools for each in parse(both).branches] == [tools, tools]


def test_answers_that_repeat_the_question_later():
    record = {"prompt": "Hi", "chosen": [GOOD, USER, GOOD], "rejected": [BAD, USER, BAD]}
    assert messages_of(record) == ([[USER, GOOD, USER, GOOD], [USER, BAD, USER, BAD]], 1)
    system = {"role": "system", "content": "s"}
    record = {"prompt": "Hi", "chosen": [system, USER, GOOD], "rejected": [system, USER, BAD]}
    assert messages_of(record) == ([[system, USER, GOOD], [system, USER, BAD]], 2)


def test_pairs_of_alpaca_records():
    record = {"instruction": "Add.", "input": "1 2", "chosen": "3", "rejected": "4", "history": [["Hi", "Hello"]]}
    parsed = Normalizer(alpaca_form="template").parse({**record, "system": "s"}, 7)
    asked = [{"role": "system", "content": "s"}, USER, GOOD, {"role": "user", "content": "Add.\n\n1 2"}]
    assert [each.messages[:4] for each in parsed.branches] == [asked, asked]
    assert [each.messages[4]["content"] for each in parsed.branches] == ["3", "4"]
    assert [each.num_prompt for each in parsed.branches] == [4, 4]
    chosen, rejected = parse({**record, "history": []}).branches
    assert chosen.prompt == rejected.prompt == PROMPT_WITH_INPUT.format(instruction="Add.", input="1 2")
    assert (chosen.kind, chosen.completion, rejected.completion) == ("preference", "3", "4")
    del record["history"]
    assert reason({**record, "rejected": ""}) == '"rejected" is empty: there is nothing to train on'
    assert reason({**record, "rejected": [GOOD]}) == '"rejected" must be a string, this is an array'


def test_an_implicit_prompt_may_end_with_any_message():
    assert messages_of({"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, GOOD, CALL, BAD]})[1] == 2
    assert messages_of({"chosen": [USER, GOOD], "rejected": [USER, GOOD, CALL, BAD]})[1] == 1
    assert messages_of({"chosen": [USER, GOOD], "rejected": [USER, GOOD]})[1] == 1


@pytest.mark.parametrize("others", [{"tool_calls": None}, {"weight": 0}, {"train": False, "name": None}])
def test_nulls_and_flags_do_not_end_an_implicit_prompt(others):
    chosen, rejected = [USER, {**GOOD, **others}, USER, GOOD], [USER, GOOD, USER, BAD]
    for pair in ({"chosen": chosen, "rejected": rejected}, {"chosen": rejected, "rejected": chosen}):
        assert messages_of(pair)[1] == 3
        assert messages_of({"messages": [{**USER, "name": None}], **pair})[1] == 3
        assert [branch.weights for branch in parse(pair).branches] == [None, None]


def test_a_flag_in_an_implicit_prompt_says_that_only_answers_have_a_loss():
    weighted = [USER, {**GOOD, "weight": 1}, USER, GOOD], [USER, GOOD, USER, BAD]
    for chosen, rejected in (weighted, weighted[::-1]):
        assert "only answers have a loss" in reason({"chosen": chosen, "rejected": rejected})


@given(st.text("ab ", max_size=6), st.text("ab ", min_size=1, max_size=4), st.text("ab ", min_size=1, max_size=4))
def test_the_common_beginning_of_texts_is_trls(prompt, chosen, rejected):
    one, other = prompt + chosen, prompt + rejected
    trl = pytest.importorskip("trl")
    border = common_beginning(one, other)
    assert one[:border] == other[:border]
    if border or not one.endswith(" "):  # There, TRL takes the last char of each.
        expected = trl.extract_prompt({"chosen": one, "rejected": other})
        assert {"prompt": one[:border], "chosen": one[border:], "rejected": other[border:]} == expected


def test_groups():
    record = {"prompt": "1+2=", "completions": ["3", "4", "5"], "rewards": [1, 0.5, 0], "weights": [1, 0, 0.5]}
    document = parse({**record, "weight": 2})
    assert (document.kind, document.rewards) == ("completions", (1.0, 0.5, 0.0))
    assert [(each.completion, each.weight) for each in document.branches] == [("3", 2.0), ("4", 0.0), ("5", 1.0)]
    chats = {"prompt": [USER], "completions": [[GOOD], BAD, "Hello"]}
    assert messages_of(chats) == ([[USER, GOOD], [USER, BAD], [USER, GOOD]], 1)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({**TEXTS, "chosen": 3}, '"chosen" must be a string or an array of messages, this is a number'),
        ({**TEXTS, "chosen": [GOOD]}, '"chosen" is an array but "rejected" is a string; both must agree'),
        ({**TEXTS, "margin": "2"}, '"margin" must be a finite number, this is a string'),
        ({**TEXTS, "margin": float("nan")}, '"margin" must be a finite number, this is nan'),
        ({**TEXTS, "weight": -1}, '"weight" is -1; a weight is 0, or from 1e-9 to 1e9'),
        ({**TEXTS, "system": "s"}, '"system" has no place in a prompt that is a string; write "prompt" as messages'),
        (
            {"chosen": [USER, GOOD], "rejected": [CALL, BAD]},
            '"chosen" and "rejected" begin with different messages, so they have no prompt in common; give "prompt"',
        ),
        (
            {"chosen": [USER], "rejected": [USER]},
            '"chosen" and "rejected" are the same messages, without an answer',
        ),
        ({"chosen": [USER, GOOD], "rejected": [USER]}, '"rejected" has no answer after the prompt that both begin wi'),
        ({"chosen": [USER], "rejected": [USER, BAD]}, '"chosen" has no answer after the prompt that both begin with'),
        (
            {**TEXTS, "ref_chosen_logps": -1.5},
            '"ref_rejected_logps" is missing; give both ref_chosen_logps and ref_rejected_logps, or neither',
        ),
        ({**TEXTS, "ref_chosen_logps": None, "ref_rejected_logps": -1}, '"ref_chosen_logps" is missing; give both'),
        ({**TEXTS, "prompt": 7}, '"prompt" must be a string or an array of messages, this is a number'),
        (
            {"messages": 7, "chosen": GOOD, "rejected": BAD},
            '"messages" must be an array of messages, this is a number',
        ),
        ({"prompt": 7, "completions": ["3"]}, '"prompt" must be a string or an array of messages, this is a number'),
        (
            {"question": "Why?", "chosen": "a", "rejected": "b"},
            'it has no "prompt"; if "question" is the prompt, rename it to "prompt"',
        ),
        (
            {"prompt": [USER, {"role": "assistant", "content": "a", "weight": 1}], "chosen": GOOD, "rejected": BAD},
            'a message of the prompt has a "weight", but only answers have a loss; remove it',
        ),
        ({"prompt": [USER], "chosen": [GOOD], "rejected": [{"role": "assistant"}]}, "rejected[0] has no"),
        ({**TEXTS, "images": ["a.png"]}, '"images" is not empty'),
        (
            {"messages": [USER], "rejected_response": "What"},
            '"messages" must end with the answer of the assistant that "rejected_response" is worse than',
        ),
        ({"prompt": "a", "completions": []}, '"completions" is empty: there is nothing to train on'),
        ({"prompt": "a", "completions": "b"}, '"completions" must be an array, this is a string'),
        ({"prompt": "a", "completions": ["b", [GOOD]]}, '"completions[1]" must be a string, as the other answers are'),
        (
            {"prompt": "a", "completions": ["b"], "rewards": [1, 2]},
            '"rewards" has 2 entries but "completions" has 1; they must be equal',
        ),
        ({"prompt": "a", "completions": ["b"], "weights": [-1]}, 'weights[0]: "weight" is -1; a weight is 0'),
        (
            {"prompt": "a", "completions": ["b", "c"], "labels": [True, False]},
            '"labels" makes "completions" the steps of one answer, which hbpack does not support',
        ),
    ],
)
def test_why_records_are_rejected(record, expected):
    assert reason(record).startswith(expected)


def test_items_choose_what_is_taken():
    group = {"prompt": "a", "completions": ["b"]}
    records = {"pairs": TEXTS, "groups": group}
    for items, record in records.items():
        normalizer = Normalizer(items=items)
        assert not isinstance(normalizer.parse(record, 1), Reject)
        for other in (CHAT, PROMPT, TEXT, ALPACA, TOKENS, *(each for name, each in records.items() if name != items)):
            assert normalizer.parse(other, 1).reason.startswith(
                f"not a {'preference' if items == 'pairs' else 'completions'} record: has keys"
            )
    assert all(isinstance(Normalizer(items="none").parse(each, 1), Reject) for each in (TEXTS, group, TOKEN_PAIR))


@pytest.mark.parametrize("form", SAVE)
def test_pairs_and_groups_are_read_from_every_kind_of_file(tmp_path, form):
    records = [
        {"chosen": [USER, GOOD], "rejected": [USER, BAD], "margin": 0.5, "score": 3},
        {"chosen": [USER, GOOD], "rejected": [USER, GOOD, CALL, BAD], "margin": None, "score": 4},
    ]
    groups = [{"prompt": [USER], "completions": [[GOOD], [BAD]], "rewards": [1.0, 2.5]}]
    for name, rows in (("pairs", records), ("groups", groups)):
        folder = tmp_path / name
        folder.mkdir()
        reader = SliceReader()
        found = [
            document
            for slice_ in slice_corpus(discover([str(SAVE[form](folder, rows))])[1])
            for batch in reader.read(slice_)
            for document in batch.documents
        ]
        expected = [parse({key: value for key, value in row.items() if value is not None}) for row in rows]
        assert [each._replace(line=0, branches=()) for each in found] == [
            each._replace(line=0, branches=()) for each in expected
        ]
        assert [branch._replace(line=7) for each in found for branch in each.branches] == [
            branch for each in expected for branch in each.branches
        ]
        assert [each.line for each in found] == list(range(1, len(rows) + 1))


def read_pairs(path):
    """All that a file holds, as one batch."""
    whole = DocumentBatch()
    for slice_ in slice_corpus(discover([str(path)])[1]):
        for batch in SliceReader().read(slice_):
            both = [each for each in (whole.tokens, batch.tokens) if each is not None]
            whole.tokens = join_samples(both) if both else None
            whole.pairs |= batch.pairs
            whole.rejects += batch.rejects
    return whole


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_tokenized_pairs(tmp_path, form):
    records = [
        {**TOKEN_PAIR, "margin": 1.5},
        {"prompt_ids": [1], "chosen_ids": [], "rejected_ids": [5], "margin": None},
        {"prompt_ids": [1], "chosen_ids": [3], "rejected_ids": [-5], "margin": None},
        {"prompt_ids": None, "chosen_ids": [7, 8, 9], "rejected_ids": [7, 8], "margin": None},
        {"prompt_ids": [], "chosen_ids": [7, 8, 9], "rejected_ids": [7, 8], "margin": None},  # As `"prompt": ""`.
    ]
    batch = read_pairs(SAVE[form](tmp_path, records))
    samples = batch.tokens
    assert samples.lines.tolist() == [1, 1, 4, 4, 5, 5]
    rows = [samples.input_ids[a:b].tolist() for a, b in zip(samples.offsets[:-1], samples.offsets[1:], strict=True)]
    assert rows == [[1, 2, 3, 4], [1, 2, 5], *[[7, 8, 9], [7, 8]] * 2]
    assert samples.loss_mask.astype(int).tolist() == [0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, *[1] * 5]
    assert batch.pairs == {1: {"margin": 1.5}, 4: {}, 5: {}}
    assert batch.rejects == [
        (2, '"chosen_ids" is empty'),
        (3, "rejected_ids[0] is -5; an id must be in 0..2147483647"),
    ]


def test_tokenized_pairs_among_tokenized_records_and_weights(tmp_path):
    records = [TOKENS, {**TOKEN_PAIR, "weight": 0.5}, {"input_ids": [1, 2, 3, 4], "seq_lengths": [2, 2]}, TOKEN_PAIR]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    batch = read_pairs(path)
    assert batch.tokens.lines.tolist() == [1, 2, 2, 3, 3, 4, 4]
    assert batch.tokens.loss_mask.dtype == np.float32
    assert batch.tokens.loss_mask.tolist() == [0, 1, 1, 0, 0, 0.5, 0.5, 0, 0, 0.5, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("value", ["1 2", [1, True], [1, "2"], [[1]]])
def test_bad_ids_of_a_pair(value, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**TOKEN_PAIR, "chosen_ids": value}) + "\n", encoding="utf-8")
    batch = read_pairs(path)
    assert batch.tokens is None
    (reject,) = batch.rejects
    assert reject.reason.startswith(("chosen_ids[", '"chosen_ids" must be an array of integers'))


def test_a_rejected_response_takes_the_place_of_all_after_the_last_question():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    result = {"role": "tool", "content": "4"}
    asked = [USER, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "2+2?"}]
    good = [call, result, {"role": "assistant", "content": "4"}]
    document = parse({"messages": [*asked, *good], "rejected_response": "5"})
    assert [each.messages for each in document.branches] == [
        [*asked, *good],
        [*asked, {"role": "assistant", "content": "5"}],
    ]
    assert [each.num_prompt for each in document.branches] == [3, 3]
    last = {"role": "tool_call", "content": '{"name": "f", "arguments": {}}'}
    document = parse({"messages": [*asked, last], "rejected_response": [call, result, call]})
    assert [len(each.messages) for each in document.branches] == [4, 6]
