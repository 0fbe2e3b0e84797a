"""Samples in which no token carries a loss are left out, each with a reject."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.types import Document
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS
from packer_cli.tokens.encode.items import LEFT_OUT, REASON, drop_without_loss
from packer_cli.tokens.encode.rows import EncodedBatch, Items
from tests.tokens.helpers import CHATS, encode, encoder_of, rows, tokens
from tests.tokens.item_stores import Item, batch_of
from tests.tokens.test_store import encoded


@given(st.lists(st.lists(st.sampled_from([0, 0, 0, 1, 0.5]), min_size=1, max_size=5), max_size=6))
def test_those_with_a_loss_stay_as_they_are(masks):
    samples = [([number] * len(mask), mask) for number, mask in enumerate(masks)]
    batch = encoded(samples)
    is_open = np.arange(len(samples)) % 2 == 0
    whole = EncodedBatch(samples=batch, items=Items.of_samples(len(samples)), is_open=is_open, rejects=[])
    left, rejects = drop_without_loss(whole, Counter())
    kept = left.samples
    wanted = [number for number, mask in enumerate(masks) if any(mask[1:])]
    pairs = zip(kept.offsets[:-1], kept.offsets[1:], strict=True)
    assert [kept.input_ids[a:b].tolist() for a, b in pairs] == [samples[number][0] for number in wanted]
    assert (kept.lines - 1).tolist() == wanted
    assert left.is_open.tolist() == [number % 2 == 0 for number in wanted]
    if kept.loss_mask is not None:
        assert kept.loss_mask.dtype == batch.loss_mask.dtype
        assert kept.loss_mask.tolist() == [bit for number in wanted for bit in masks[number]]
    assert rejects == [(number + 1, REASON) for number in range(len(masks)) if number not in wanted]


def test_of_chats_texts_and_tokens(load):
    documents = [
        *(Document("messages", line, messages=messages) for line, messages in enumerate(CHATS, 1)),
        Document("messages", 7, messages=CHATS[0], weight=0.0),
        Document("messages", 8, messages=CHATS[0], weights=(1.0, 0.0, 1.0, 0.0)),
        Document("text", 9, text="a"),
        Document("text", 10, text="a and more"),
        tokens(11, [5, 6, 7], [1, 0, 0]),
        tokens(12, [5]),
        tokens(13, [5, 6]),
    ]
    for append_eos, without in (("auto", [6, 7, 8, 11, 12]), ("never", [6, 7, 8, 9, 11, 12])):
        batch = encode(encoder_of(load("bytes", "chatml"), append_eos=append_eos), documents)
        left, rejects = drop_without_loss(batch.whole, Counter())
        kept = left.samples
        assert [reject.line for reject in rejects] == without
        whole = dict(zip(batch.lines.tolist(), rows(batch), strict=True))
        assert dict(zip(kept.lines.tolist(), rows(kept), strict=True)) == {
            line: row for line, row in whole.items() if line not in without
        }


NONE, SOME = ([1, 2], [1, 0]), ([3, 4], [0, 1])


@pytest.mark.parametrize(
    ("item", "left", "reason"),
    [
        (Item(PAIR, [SOME, SOME]), 2, None),
        (Item(PAIR, [SOME, NONE]), 0, "rejected: it has no loss tokens, so the pair is left out"),
        (Item(PAIR, [NONE, SOME]), 0, "chosen: it has no loss tokens, so the pair is left out"),
        (Item(PAIR, [NONE, NONE]), 0, REASON),
        (Item(GROUP, [SOME, SOME, NONE]), 2, None),
        (Item(GROUP, [NONE, NONE]), 0, REASON),
        (Item(TURNS, [NONE, SOME, NONE, SOME]), 2, None),
        (Item(TURNS, [NONE, NONE]), 0, REASON),
        (Item(SAMPLE, [NONE]), 0, REASON),
    ],
)
def test_items_stay_whole(item, left, reason):
    pair = Item(PAIR, [SOME, SOME], values={"margin": 0.5})
    samples, items = batch_of([pair, item, Item(GROUP, [SOME], rewards=[2.0])])
    batch = EncodedBatch(samples=samples, items=items, is_open=np.arange(len(samples.lines)) > 0, rejects=[])
    unused = Counter()
    kept, rejects = drop_without_loss(batch, unused)
    assert unused[LEFT_OUT] == (item.kind == GROUP and 0 < left < len(item.branches))
    assert rejects == ([] if reason is None else [(2, reason)])
    places = [place for place, branch in enumerate(item.branches) if branch is SOME][:left]
    assert kept.samples.lines.tolist() == [1, 1, *[2] * left, 3]
    assert kept.items.offsets.tolist() == [0, 2, *[2 + left] * (left > 0), 3 + left]
    assert kept.items.kinds.tolist() == [PAIR, *[item.kind] * (left > 0), GROUP]
    assert kept.items.roles.tolist() == [0, 1, *places, 0]
    assert np.nan_to_num(kept.items.rewards, nan=-1).tolist() == [-1, -1, *[-1] * left, 2]
    margins = np.nan_to_num(kept.items.values["margin"], nan=-1).tolist()
    assert margins == [0.5, *[-1] * (left > 0), -1]
    assert len(kept.is_open) == len(kept.samples.lines)
