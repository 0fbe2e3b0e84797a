"""Ids and masks of conversations and texts, against transformers."""

import pytest

from packer_cli.corpus.types import Document
from packer_cli.errors import TokenizerError
from tests.tokens.helpers import CHATS, assert_well_formed, chats, encode, encoder_of, rows, tokens, turns


@pytest.mark.parametrize("backend", ["tokenizers", "auto"])
@pytest.mark.parametrize("kind", ["bytes", "metaspace", "bos", "nfc"])
@pytest.mark.parametrize("template", ["chatml", "chatml-generation", "qwen3", "qwen3-generation"])
def test_conversations_equal_transformers(load, kind, template, backend):
    loaded = load(kind, template)
    tagged = load(kind, template.removesuffix("-generation") + "-generation")
    batch = encode(encoder_of(loaded, backend=backend), chats(*CHATS))
    assert_well_formed(batch)
    assert batch.lines.tolist() == [1, 2, 3, 4, 5, 6]
    for messages, (ids, mask) in zip(CHATS, rows(batch), strict=True):
        expected = tagged.hf.apply_chat_template(
            messages, chat_template=tagged.chat_template, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        if not (kind == "nfc" and any(m["content"].startswith(" ") for m in messages)):
            assert mask == expected["assistant_masks"]
    assert sum(rows(batch)[0][1]) > 0
    assert sum(rows(batch)[5][1]) == 0


def test_leading_space_that_offsets_trim_is_trained_on(load):
    """The trimmed space belongs to no token; transformers before 5.24 marks nothing from there on."""
    loaded = load("nfc", "chatml-generation")
    messages = turns("a", " fine", "b", "ok")
    theirs = loaded.hf.apply_chat_template(
        messages, chat_template=loaded.chat_template, return_dict=True, return_assistant_tokens_mask=True
    )
    [(ids, mask)] = rows(encode(encoder_of(loaded), chats(messages)))
    assert theirs["assistant_masks"] in ([0] * len(ids), mask)
    kept = [number for number, bit in zip(ids, mask, strict=True) if bit]
    assert loaded.hf.decode(kept) == " fine<|im_end|>ok<|im_end|>"


def test_text_changed_by_a_normalizer_is_marked_by_offsets(load):
    loaded = load("nfc", "chatml")
    messages = turns("cafe\u0301", "e\u0301te\u0301 \u0958 ok")
    [(ids, mask)] = rows(encode(encoder_of(loaded), chats(messages)))
    kept = [number for number, bit in zip(ids, mask, strict=True) if bit]
    assert loaded.hf.decode(kept) == "été \u0915\u093c ok<|im_end|>"


def test_loss_on_all(load):
    batch = encode(encoder_of(load("bytes", "chatml"), loss_on="all"), chats(*CHATS))
    assert batch.loss_mask.all()


@pytest.mark.parametrize("kind", ["bytes", "bos", "metaspace", "nfc"])
def test_texts_and_completions_equal_transformers(load, kind):
    loaded = load(kind)
    texts = ["Hello world", "naïve 你好\n", "  spaces  ", "<|im_end|> é"]
    pairs = [("Ask: ", "answer é"), ("Q\n", " A"), ("naïve é", "你好 🙂")]
    documents = [Document("text", line, text=text) for line, text in enumerate(texts, 1)]
    documents += [Document("prompt-completion", line, prompt=p, completion=c) for line, (p, c) in enumerate(pairs, 5)]
    batch = encode(encoder_of(loaded), documents)
    assert_well_formed(batch)
    got = rows(batch)
    for text, (ids, mask) in zip(texts, got, strict=False):
        assert ids == loaded.hf(text)["input_ids"]
        assert set(mask) == {1}
    for (prompt, completion), (ids, mask) in zip(pairs, got[4:], strict=True):
        assert ids == loaded.hf(prompt + completion)["input_ids"]
        offsets = loaded.hf(prompt + completion, return_offsets_mapping=True)["offset_mapping"]
        if kind in ("bytes", "bos"):
            expected = [int(end > len(prompt)) for _, end in offsets]
            if loaded.suffix_ids:
                expected[-1] = 1
            assert mask == expected
        assert 0 < sum(mask) < len(mask)
    everything = encode(encoder_of(loaded, loss_on="all"), documents)
    assert everything.loss_mask.all()


def test_append_eos_always_where_there_is_none(load):
    loaded = load("bytes", "chatml")
    eos = loaded.eos_token_id
    documents = [
        Document("text", 1, text="abc"),
        Document("text", 2, text="abc<|im_end|>"),
        tokens(3, [7], [0]),
        Document("messages", 4, messages=turns("a", "b")),
        Document("text", 5, text=""),
    ]
    plain, closed = (encode(encoder_of(loaded, append_eos=how), documents) for how in ("never", "always"))
    for (before, mask), (after, new_mask) in zip(rows(plain), rows(closed), strict=True):
        expected = before if before[-1] == eos else [*before, eos]
        assert after == expected
        assert new_mask == mask + [1] * (len(after) - len(before))
    assert [reject.line for reject in closed.rejects] == [5]
    bare = load("bytes", None, eos_token=None)
    with pytest.raises(TokenizerError) as caught:
        encoder_of(bare, append_eos="always")
    assert str(caught.value) == (
        "--append-eos always needs an EOS token, and the tokenizer has none; name a token of its vocabulary with "
        "--eos-token TOKEN"
    )


def test_real_conversations(minimind, real_chats):
    batch = encode(encoder_of(minimind), chats(*real_chats))
    assert_well_formed(batch)
    assert encoder_of(minimind).backend_used == "gigatoken"
    for messages, (ids, mask) in zip(real_chats, rows(batch), strict=True):
        assert ids == minimind.hf.apply_chat_template(messages, return_dict=False)
        kept = minimind.hf.decode([number for number, bit in zip(ids, mask, strict=True) if bit])
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        assert kept == "".join(answer.lstrip("\n") + "<|im_end|>" for answer in answers)
    assert rows(batch) == rows(encode(encoder_of(minimind, backend="tokenizers"), chats(*real_chats)))


def test_real_texts_with_neox(neox, real_chats):
    texts = ["\n".join(message["content"] for message in messages) for messages in real_chats]
    documents = [Document("text", line, text=text) for line, text in enumerate(texts, 1)]
    for (ids, _), text in zip(rows(encode(encoder_of(neox), documents)), texts, strict=True):
        assert ids == neox.hf(text)["input_ids"]
