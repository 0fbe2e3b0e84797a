"""`--plain-content`: special tokens written inside the data are ordinary text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.corpus.types import Document, Reject
from tests.tokens.helpers import chats, encode, encoder_of, rows, turns

PIECES = [
    "<|im_end|>",
    "<|im_start|>",
    "<s>",
    "<",
    "|",
    "im_end|>",
    " ",
    "a",
    "é",
    "\n",
    "你",
    "\U000f0000",
    "\U000f0001",
]
CONTENT = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@pytest.mark.parametrize("kind", ["bytes", "metaspace", "nfc"])
def test_plain_content_equals_transformers(load, kind):
    loaded = load(kind, "chatml")
    encoder = encoder_of(loaded, plain_content=True)

    @given(st.lists(CONTENT, min_size=1, max_size=4))
    @settings(max_examples=40)
    def check(contents):
        messages = turns(*contents)
        batch = encode(encoder, chats(messages))
        expected = loaded.hf.apply_chat_template(
            messages, chat_template=loaded.chat_template, return_dict=True, sanitize_control_tokens=True
        )
        [(ids, mask)] = rows(batch)
        assert ids == expected["input_ids"]
        assert ids.count(loaded.eos_token_id) == len(messages)
        # Each answer ends with its end of turn, which is trained on, and no question's is.
        ends = [bit for number, bit in zip(ids, mask, strict=True) if number == loaded.eos_token_id]
        assert ends == [number % 2 for number in range(len(messages))]
        held = any(token in content for content in contents for token in loaded.special_tokens)
        assert batch.num_with_special == int(held)

    check()


def test_plain_content_masks_the_written_tokens_with_their_text(load):
    loaded = load("bytes", "chatml")
    [(ids, mask)] = rows(encode(encoder_of(loaded, plain_content=True), chats(turns("<|im_end|>", "x <|im_end|>\ny"))))
    kept = [number for number, bit in zip(ids, mask, strict=True) if bit]
    assert loaded.hf.decode(kept) == "x <|im_end|>\ny<|im_end|>"
    assert kept.count(loaded.eos_token_id) == 1


@pytest.mark.parametrize("kind", ["bytes", "bos"])
def test_plain_content_of_texts(load, kind):
    loaded = load(kind)
    documents = [
        Document("text", 1, text="a <|im_end|> b"),
        Document("prompt-completion", 2, prompt="q <|im_end|>", completion="<s> a"),
        Document("prompt-completion", 3, prompt="q <|im_", completion="end|> a"),
        Document("text", 4, text="nothing special"),
    ]
    batch = encode(encoder_of(loaded, plain_content=True), documents)
    special = {loaded.added_tokens[token] for token in loaded.special_tokens}
    around = [*loaded.prefix_ids], [*loaded.suffix_ids]
    for ids, _ in rows(batch):
        inner = ids[len(around[0]) : len(ids) - len(around[1])]
        assert (ids[: len(around[0])], ids[len(ids) - len(around[1]) :]) == around
        assert not special & set(inner)
    texts = ["a <|im_end|> b", "<s> a", "<|im_end|> a", "nothing special"]
    for (ids, mask), text in zip(rows(batch), texts, strict=True):
        kept = [number for number, bit in zip(ids, mask, strict=True) if bit and number not in special]
        assert loaded.hf.decode(kept) == text
    assert batch.num_with_special == 3
    assert encode(encoder_of(loaded), documents).num_with_special == 3


def test_a_token_that_has_no_other_ids_rejects_the_record(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "<x>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<x>"])
    words.save(str(tmp_path / "tokenizer.json"))
    encoder = encoder_of(LoadedTokenizer(str(tmp_path)), plain_content=True)
    batch = encode(encoder, [Document("text", 1, text="a <x> a"), Document("text", 2, text="a a")])
    assert rows(batch) == [([1, 1], [1, 1])]
    reason = "'<x>' cannot be encoded as plain text: the tokenizer has no other ids for it"
    assert batch.rejects == [Reject(1, reason)]
