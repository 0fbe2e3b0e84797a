"""Records that the encoder is given as ids, leaves out, or warns of."""

import pytest

from packer_cli.corpus.types import Document
from packer_cli.errors import TokenizerError
from packer_cli.tokens.encoder import Encoder
from tests.tokens.helpers import assert_well_formed, chats, encode, rows, turns


def test_given_ids_are_kept_and_checked(load):
    loaded = load("bytes")
    top = loaded.vocab_size
    documents = [
        Document("tokens", 1, input_ids=[5, 6, 7]),
        Document("tokens", 2, input_ids=[5, 6, 7], loss_mask=[0, 1, 0]),
        Document("tokens", 3, input_ids=[5, top]),
        Document("tokens", 4, input_ids=[-1]),
        Document("tokens", 5, input_ids=[1, 2], loss_mask=[1]),
        Document("tokens", 6, input_ids=[1.5]),
        Document("tokens", 7, input_ids=[]),
        Document("tokens", 8, input_ids=[1, 2], loss_mask=[1, 2]),
        Document("tokens", 9, input_ids=[2**70]),
        Document("tokens", 10, input_ids=[top - 1]),
    ]
    batch = encode(Encoder(loaded), documents)
    assert rows(batch) == [([5, 6, 7], [1, 1, 1]), ([5, 6, 7], [0, 1, 0]), ([top - 1], [1])]
    assert batch.lines.tolist() == [1, 2, 10]
    reasons = {reject.line: reject.reason for reject in batch.rejects}
    assert list(reasons) == [3, 4, 5, 6, 7, 8, 9]
    assert reasons[3] == f"input_ids holds {top}; the tokenizer's ids are 0 to {top - 1}"
    assert reasons[5] == "loss_mask has 1 entries and input_ids 2; they must match"
    assert reasons[7] == "is empty: it gives no token"


def test_no_chat_template_is_an_error_when_conversations_come(load):
    encoder = Encoder(load("bytes"))
    assert len(encode(encoder, [Document("text", 1, text="a")]).lines) == 1
    with pytest.raises(TokenizerError, match="no chat template; give one with --chat-template FILE"):
        encode(encoder, chats(turns("a", "b")))


def test_bad_records_are_rejected_and_the_rest_kept(load):
    documents = [
        Document("messages", 1, messages=[{"role": "assistant", "content": "x"}]),
        Document("messages", 2, messages=turns("a", "b")),
        Document("messages", 3, messages=turns("a", "\ud800")),
        Document("text", 4, text="x\udfff"),
        Document("text", 5, text=""),
        Document("prompt-completion", 6, prompt="", completion=""),
        Document("text", 7, text="é"),
    ]
    batch = encode(Encoder(load("bytes", "llama2")), documents)
    assert batch.lines.tolist() == [2, 7]
    assert [reject.line for reject in batch.rejects] == [1, 3, 4, 5, 6]
    assert batch.rejects[0].reason.endswith("Roles must alternate user/assistant")
    assert batch.rejects[1].reason == "holds a lone surrogate, which cannot be encoded as UTF-8"


def test_empty_batch(load):
    batch = encode(Encoder(load("bytes")), [])
    assert_well_formed(batch)
    assert len(batch.lines) == 0


def test_date_in_a_template_is_warned_of(load):
    encoder = Encoder(load("bytes", "{{ strftime_now('%Y') }}{{ messages[0].content }}"), loss_on="all")
    encode(encoder, chats(turns("a", "b")))
    assert len(encoder.warnings) == 1
    assert "strftime_now" in encoder.warnings[0]
    dated = encoder.warnings[:]
    encode(encoder, chats(turns("a", "b")))
    assert encoder.warnings == dated  # Once a part.
    # A part's warnings are its own, whatever else this process encoded before: its bytes depend on nothing else.
    encoder.start_part()
    encode(encoder, [Document("text", 1, text="hello")])
    assert encoder.warnings == []
    encoder.start_part()
    encode(encoder, chats(turns("a", "b")))
    assert encoder.warnings == dated
