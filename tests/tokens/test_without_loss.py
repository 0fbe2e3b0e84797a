"""Samples in which no token carries a loss are left out, each with a reject."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.types import Document
from packer_cli.tokens.encode.encoder import Encoder
from packer_cli.tokens.encode.rows import EncodedBatch
from packer_cli.tokens.without_loss import REASON, drop_without_loss
from tests.tokens.helpers import CHATS, encode, rows, tokens
from tests.tokens.test_store import encoded


@given(st.lists(st.lists(st.sampled_from([0, 0, 0, 1, 0.5]), min_size=1, max_size=5), max_size=6))
def test_those_with_a_loss_stay_as_they_are(masks):
    samples = [([number] * len(mask), mask) for number, mask in enumerate(masks)]
    batch = encoded(samples)
    whole = EncodedBatch(samples=batch, is_open=np.arange(len(samples)) % 2 == 0, rejects=[])
    left, rejects = drop_without_loss(whole)
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
        batch = encode(Encoder(load("bytes", "chatml"), append_eos=append_eos), documents)
        left, rejects = drop_without_loss(batch.whole)
        kept = left.samples
        assert [reject.line for reject in rejects] == without
        whole = dict(zip(batch.lines.tolist(), rows(batch), strict=True))
        assert dict(zip(kept.lines.tolist(), rows(kept), strict=True)) == {
            line: row for line, row in whole.items() if line not in without
        }
