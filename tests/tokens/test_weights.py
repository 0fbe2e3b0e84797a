"""Weights of messages and records on the tokens of their loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.records.token_rows import TokenRecord
from packer_cli.corpus.types import Document
from packer_cli.format.loss_spans import find_wrong_row, mask_to_spans, spans_to_weights
from packer_cli.tokens import writer
from tests.naive import loss_spans as naive
from tests.tokens.helpers import CHATS, encode, encoder_of, rows, turns
from tests.tokens.item_stores import totals
from tests.tokens.test_store import encoded

WEIGHTS = [0.5, 1.0, 2.5]
CONTENTS = ["Hello", "Hi there!", "naïve café", "straße 你好 🙂", "e\u0301te\u0301 <|im_end|>", " fine \n"]


def weighted(messages, weights, weight=1.0, line=1):
    of_messages = iter(weights)
    each = tuple(next(of_messages) if turn["role"] == "assistant" else 1.0 for turn in messages)
    return Document("messages", line, messages=messages, weight=weight, weights=each)


@pytest.mark.parametrize("options", [{}, {"plain_content": True}, {"backend": "tokenizers"}])
@pytest.mark.parametrize("kind", ["bytes", "metaspace", "nfc", "bos"])
@pytest.mark.parametrize("template", ["chatml", "chatml-generation"])
def test_each_message_has_its_weight(load, kind, template, options):
    """The sum of the masks of single messages, each times its weight."""
    encoder = encoder_of(load(kind, template), append_eos="auto", **options)
    messages = turns(*CONTENTS)
    alone = []
    for number in range(3):
        only = [float(number == other) for other in range(3)]
        ((ids, mask),) = rows(encode(encoder, [weighted(messages, only)]))
        assert set(mask) == {0, 1}
        alone.append(np.array(mask))
    batch = encode(encoder, [weighted(messages, WEIGHTS, 3.0), Document("text", 2, text="plain", weight=0.25)])
    assert batch.loss_mask.dtype == np.float32
    (same, found), (_, of_text) = rows(batch)
    assert same == ids
    first_wins = np.zeros(len(ids))
    for mask, weight in zip(alone, WEIGHTS, strict=True):
        first_wins[(mask == 1) & (first_wins == 0)] = 3.0 * weight
    assert found == first_wins.tolist()
    assert set(of_text) == {0.25}


def test_weights_of_0_and_1_are_a_mask(load):
    encoder = encoder_of(load("bytes", "chatml"))
    documents = [weighted(messages, [1.0] * 3, line=line) for line, messages in enumerate(CHATS, 1)]
    assert rows(encode(encoder, documents)) == rows(
        encode(encoder, [document._replace(weights=None) for document in documents])
    )
    nothing = encode(encoder, [document._replace(weight=0.0) for document in documents])
    assert nothing.loss_mask.dtype == np.bool_
    assert not nothing.loss_mask.any()


def test_an_open_turn_ends_with_its_weight(load):
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    encoder = encoder_of(load("bytes", template), append_eos="auto")
    ((ids, mask),) = rows(encode(encoder, [weighted(turns("a", "b"), [0.5])]))
    assert (ids[-1], mask[-1]) == (load("bytes", template).eos_token_id, 0.5)


def test_eos_has_the_weight_of_its_sample(load):
    """Also where no other token has it: an empty answer of a template that leaves turns open."""
    template = "{% for m in messages %}{{ m.role + ': ' + m.content if m.content }}{% endfor %}"
    for options in ({}, {"plain_content": True}):
        encoder = encoder_of(load("bytes", template), append_eos="auto", **options)
        batch = encode(encoder, [Document("messages", 1, messages=turns("<s>", ""), weight=0.5)])
        assert rows(batch)[0][1][-1] == 0.5
    records = [
        TokenRecord(1, {"input_ids": [5, 6], "weight": 0.5}),
        TokenRecord(2, {"input_ids": [5, 6], "weight": 0}),
        TokenRecord(3, {"input_ids": [5, 6], "loss_mask": [0, 1]}),
    ]
    for some, weights in ((records, [0.5, 0, 1]), (records[1:], [0, 1])):
        batch = encode(encoder_of(load("bytes", "chatml"), append_eos="always"), some)
        assert [mask[-1] for _, mask in rows(batch)] == weights


def test_parts_of_turns_have_weights(load):
    encoder = encoder_of(load("bytes", "chatml"), loss_on="reasoning")
    messages = turns("a", "<think>hm</think>b", "c", "<think>so</think>d")
    ((ids, mask),) = rows(encode(encoder, [weighted(messages, [0.5, 2.0])]))
    decode = load("bytes", "chatml").hf.decode
    for weight, text in ((0.5, "<think>hm</think>"), (2.0, "<think>so</think>")):
        assert decode([one for one, each in zip(ids, mask, strict=True) if each == weight]).lstrip("\n") == text


def test_what_cannot_have_weights(load):
    documents = [weighted(turns("a", "b"), [0.5]), weighted(turns("a", "b"), [1.0], 0.5, line=2)]
    batch = encode(encoder_of(load("bytes", "chatml"), loss_on="all"), documents)
    reason = (
        'messages have "weight", but --loss-on all trains on what is between them, too; give the record a weight, or '
        "choose another --loss-on"
    )
    assert [(reject.line, reject.reason) for reject in batch.rejects] == [(1, reason)]
    assert set(rows(batch)[0][1]) == {0.5}


def test_weights_that_come_late_begin_a_part_again(monkeypatch, tmp_path):
    monkeypatch.setattr(writer, "_TOKENS_PER_BATCH", 4)
    plain, heavy = encoded([([1, 2, 3, 4], [0, 1, 1, 0])]), encoded([([1, 2, 3, 4], [0, 1, 0.5, 0])])
    from packer_cli.files import atomic_file
    from packer_cli.format.schema import RowColumns, token_type

    with atomic_file(tmp_path / "part") as file:
        part = writer.PartWriter(file, token_type(100))
        part.write(plain)
        with pytest.raises(writer.LateColumnsError):
            part.write(heavy)
    written = []
    for some, is_weighted in (([plain, heavy], True), ([heavy, plain], False)):
        with atomic_file(tmp_path / "part") as file:
            part = writer.PartWriter(file, token_type(100), RowColumns(is_weighted=is_weighted))
            for batch in some:
                part.write(batch)
            part.close()
        written.append((totals(part)["num_loss_tokens"], part.loss_weight))
    assert written == [(4, 3.5)] * 2


@given(st.lists(st.lists(st.sampled_from([0, 0, 1, 0.5, 2]), min_size=1, max_size=6), min_size=1, max_size=5))
def test_spans_of_weights(samples):
    weights = [0 if place == 0 else weight for sample in samples for place, weight in enumerate(sample)]
    lengths = [len(sample) for sample in samples]
    borders = np.concatenate([[0], np.cumsum(lengths)])
    spans = mask_to_spans(np.array([w for sample in samples for w in sample], dtype=np.float32), borders)
    assert tuple(each.tolist() for each in spans) == naive.weighted_spans_of(weights)
    assert spans_to_weights(*spans, len(weights)).tolist() == weights
    starts, stops, values = spans
    whole = np.array([0, len(starts)]), np.array([0, len(weights)]), borders
    assert find_wrong_row(starts, stops, *whole, values) is None
    if len(values):
        for bad in (0, -1, np.nan, np.inf):
            assert find_wrong_row(starts, stops, *whole, np.full(len(values), bad, np.float32)) == 0
        touching = (starts[1:] == stops[:-1]).any()
        assert (find_wrong_row(starts, stops, *whole, np.ones(len(values), np.float32)) == 0) == touching
