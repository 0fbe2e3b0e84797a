"""Records that the encoder is given as ids, leaves out, or warns of."""

import pytest

from packer_cli.corpus.types import Document, Reject
from packer_cli.errors import TokenizerError
from tests.tokens.helpers import assert_well_formed, chats, encode, encoder_of, rows, tokens, turns


def test_given_ids_are_kept(load):
    loaded = load("bytes")
    top = loaded.vocab_size
    batch = encode(encoder_of(loaded), [tokens(1, [5, 6, 7]), tokens(2, [5, 6, 7], [0, 1, 0]), tokens(4, [top - 1])])
    assert rows(batch) == [([5, 6, 7], [1, 1, 1]), ([5, 6, 7], [0, 1, 0]), ([top - 1], [1])]
    assert batch.lines.tolist() == [1, 2, 4]


def test_no_chat_template_is_an_error_when_conversations_come(load):
    encoder = encoder_of(load("bytes"))
    assert len(encode(encoder, [Document("text", 1, text="a")]).lines) == 1
    with pytest.raises(
        TokenizerError, match="no chat template; give one with --chat-template, a Jinja file or a name such as chatml"
    ):
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
    batch = encode(encoder_of(load("bytes", "llama2")), documents)
    assert batch.lines.tolist() == [2, 7]
    assert [reject.line for reject in batch.rejects] == [1, 3, 4, 5, 6]
    assert batch.rejects[0].reason.endswith("Roles must alternate user/assistant")
    assert batch.rejects[1].reason == "holds a lone surrogate, which cannot be encoded as UTF-8"


@pytest.mark.parametrize("plain_content", [False, True])
def test_deep_nesting_is_rejected(load, plain_content):
    def nested(depth):
        value = "a"
        for _ in range(depth):
            value = [value]
        return value

    said = turns("a", "b")
    documents = [
        Document("messages", 1, messages=[*said, {"role": "user", "content": "c", "x": nested(98)}]),
        Document("messages", 2, messages=[*said, {"role": "user", "content": "c", "x": nested(1000)}]),
        Document("messages", 3, messages=said, tools=[{"name": "f", "parameters": nested(1000)}]),
    ]
    batch = encode(encoder_of(load("bytes", "chatml"), plain_content=plain_content), documents)
    assert batch.lines.tolist() == [1]
    why = "a message or tool nests more than 100 objects and arrays in each other"
    assert batch.rejects == [Reject(2, why), Reject(3, why)]


def test_empty_batch(load):
    batch = encode(encoder_of(load("bytes")), [])
    assert_well_formed(batch)
    assert len(batch.lines) == 0


@pytest.mark.parametrize("is_exact", [False, True])
def test_a_template_writes_the_date_that_is_given(load, is_exact):
    template = "{% for m in messages %}{{ strftime_now('%d %b %Y') }} {{ m.content }}{% endfor %}"
    encoder = encoder_of(load("bytes", template), loss_on="all", date="2024-02-29", is_exact=is_exact)
    (row,) = rows(encode(encoder, chats(turns("a", "b"))))
    assert load("bytes").hf.decode(row[0]).startswith("29 Feb 2024 a29 Feb 2024 b")
    assert not encoder.warnings
