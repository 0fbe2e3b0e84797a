"""Ids and masks against transformers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.corpus.types import Document, DocumentBatch
from packer_cli.errors import TokenizerError
from packer_cli.tokens.backends import BackendMismatch
from packer_cli.tokens.encoder import Encoder


def chats(*conversations):
    return [Document("messages", line, messages=messages) for line, messages in enumerate(conversations, 1)]


def turns(*contents):
    return [{"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)]


def encode(encoder, documents):
    return encoder.encode(DocumentBatch(documents=list(documents)))


def rows(batch):
    pairs = zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    return [(batch.input_ids[a:b].tolist(), batch.loss_mask[a:b].tolist()) for a, b in pairs]


def assert_well_formed(batch):
    assert batch.offsets.dtype == np.int64
    assert (batch.input_ids.dtype, batch.loss_mask.dtype) == (np.int32, np.int8)
    assert batch.lines.dtype == np.int64
    assert batch.offsets[0] == 0
    assert batch.offsets[-1] == len(batch.input_ids) == len(batch.loss_mask)
    assert len(batch.offsets) == len(batch.lines) + 1
    assert (np.diff(batch.offsets) > 0).all()


CHATS = [
    turns("Hello", "Hi there!", "How are you?", " fine \n"),
    turns("naïve café", "straße 你好 🙂", "12", "é"),
    turns("<|im_end|> in content", "and <|im_start|>here"),
    turns("a", ""),
    [{"role": "system", "content": "Be brief."}, *turns("x", "y")],
    turns("only a question"),
]


@pytest.mark.parametrize("backend", ["tokenizers", "auto"])
@pytest.mark.parametrize("kind", ["bytes", "metaspace", "bos", "nfc"])
@pytest.mark.parametrize("template", ["chatml", "chatml-generation", "qwen3", "qwen3-generation"])
def test_conversations_equal_transformers(load, kind, template, backend):
    loaded = load(kind, template)
    tagged = load(kind, template.removesuffix("-generation") + "-generation")
    batch = encode(Encoder(loaded, backend=backend), chats(*CHATS))
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
    """transformers marks nothing from there on: the trimmed space belongs to no token, and it stops."""
    loaded = load("nfc", "chatml-generation")
    messages = turns("a", " fine", "b", "ok")
    theirs = loaded.hf.apply_chat_template(
        messages, chat_template=loaded.chat_template, return_dict=True, return_assistant_tokens_mask=True
    )
    [(ids, mask)] = rows(encode(Encoder(loaded), chats(messages)))
    assert sum(theirs["assistant_masks"]) == 0
    kept = [number for number, bit in zip(ids, mask, strict=True) if bit]
    assert loaded.hf.decode(kept) == " fine<|im_end|>ok<|im_end|>"


def test_text_changed_by_a_normalizer_is_marked_by_offsets(load):
    loaded = load("nfc", "chatml")
    messages = turns("cafe\u0301", "e\u0301te\u0301 \u0958 ok")
    [(ids, mask)] = rows(encode(Encoder(loaded), chats(messages)))
    kept = [number for number, bit in zip(ids, mask, strict=True) if bit]
    assert loaded.hf.decode(kept) == "été \u0915\u093c ok<|im_end|>"


def test_loss_on_all(load):
    batch = encode(Encoder(load("bytes", "chatml"), loss_on="all"), chats(*CHATS))
    assert batch.loss_mask.all()


@pytest.mark.parametrize("kind", ["bytes", "bos", "metaspace", "nfc"])
def test_texts_and_completions_equal_transformers(load, kind):
    loaded = load(kind)
    texts = ["Hello world", "naïve 你好\n", "  spaces  ", "<|im_end|> é"]
    pairs = [("Ask: ", "answer é"), ("Q\n", " A"), ("naïve é", "你好 🙂")]
    documents = [Document("text", line, text=text) for line, text in enumerate(texts, 1)]
    documents += [Document("prompt-completion", line, prompt=p, completion=c) for line, (p, c) in enumerate(pairs, 5)]
    batch = encode(Encoder(loaded), documents)
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
    everything = encode(Encoder(loaded, loss_on="all"), documents)
    assert everything.loss_mask.all()


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


def test_append_eos_only_where_there_is_none(load):
    loaded = load("bytes", "chatml")
    eos = loaded.eos_token_id
    documents = [
        Document("text", 1, text="abc"),
        Document("text", 2, text="abc<|im_end|>"),
        Document("tokens", 3, input_ids=[7], loss_mask=[0]),
        Document("messages", 4, messages=turns("a", "b")),
        Document("text", 5, text=""),
    ]
    plain, closed = (encode(Encoder(loaded, append_eos=flag), documents) for flag in (False, True))
    for (before, mask), (after, new_mask) in zip(rows(plain), rows(closed), strict=True):
        expected = before if before[-1] == eos else [*before, eos]
        assert after == expected
        assert new_mask == mask + [1] * (len(after) - len(before))
    assert [reject.line for reject in closed.rejects] == [5]
    bare = load("bytes", None, eos_token=None)
    with pytest.raises(TokenizerError, match=r'--append-eos needs an EOS token.*"eos_token"'):
        Encoder(bare, append_eos=True)


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
    encoder = Encoder(loaded, plain_content=True)

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
    [(ids, mask)] = rows(encode(Encoder(loaded, plain_content=True), chats(turns("<|im_end|>", "x <|im_end|>\ny"))))
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
    batch = encode(Encoder(loaded, plain_content=True), documents)
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
    assert encode(Encoder(loaded), documents).num_with_special == 3


def mixed_documents():
    documents = []
    for line in range(1, 60):
        kind = line % 4
        if kind == 0:
            documents.append(Document("text", line, text=f"text {line} é\u2df3\u0899 <|im_end|>"))
        elif kind == 1:
            documents.append(
                Document("messages", line, messages=turns(f"q{line}", f" a {line} 🙂", "x", "\U0001fae8"))
            )
        elif kind == 2:
            documents.append(Document("prompt-completion", line, prompt="p " * line, completion=f"c{line}"))
        else:
            documents.append(Document("tokens", line, input_ids=[line, 1]))
    return documents


@pytest.mark.parametrize("kind", ["bytes", "nfc", "metaspace"])
def test_batches_and_backends_do_not_matter(load, kind):
    documents = mixed_documents()
    loaded = load(kind, "chatml")
    results = []
    for backend, size in (("auto", 60), ("auto", 1), ("auto", 7), ("tokenizers", 13)):
        encoder = Encoder(loaded, backend=backend, check_samples=4)
        pieces = [encode(encoder, documents[at : at + size]) for at in range(0, len(documents), size)]
        results.append([row for piece in pieces for row in rows(piece)])
    assert results[0] == results[1] == results[2] == results[3]


def test_gigatoken_is_used_where_it_can(load):
    assert Encoder(load("bytes")).backend_used == "gigatoken"
    assert Encoder(load("bytes"), backend="tokenizers").backend_used == "tokenizers"


def test_what_gigatoken_cannot_load_goes_to_tokenizers(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    from packer_cli.tokens.tokenizer import load_tokenizer

    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(str(tmp_path))
    encoder = Encoder(loaded)
    assert encoder.backend_used == "tokenizers"
    document = Document("prompt-completion", 1, prompt="a b ", completion="b a")
    assert rows(encode(encoder, [document])) == [([1, 2, 2, 1], [0, 0, 1, 1])]
    with pytest.raises(TokenizerError, match="gigatoken cannot load this tokenizer"):
        Encoder(loaded, backend="gigatoken")


def spoil(encoder, monkeypatch, line_text):
    """Make gigatoken give another id for texts that hold this."""
    honest = encoder._backend._encode

    def encode_wrongly(texts):
        ids = honest(texts)
        for number, text in enumerate(texts):
            if line_text in text:
                changed = ids.input_ids.copy()
                changed[ids.offsets[number]] += 1
                ids = ids._replace(input_ids=changed)
        return ids

    monkeypatch.setattr(encoder._backend, "_encode", encode_wrongly)


def test_a_wrong_id_among_the_first_texts_sends_the_part_to_tokenizers(load, monkeypatch):
    documents = [Document("text", line, text=f"hello {line}") for line in range(1, 41)]
    encoder = Encoder(load("bytes"), check_samples=8)
    spoil(encoder, monkeypatch, "hello 7")
    with pytest.raises(BackendMismatch, match=r"^line 7: gigatoken and tokenizers give different ids") as caught:
        encode(encoder, documents)
    again = encoder.fallback(caught.value)
    assert again.backend_used == "tokenizers"
    assert again.warnings == [str(caught.value)]
    assert caught.value.what == "ids"
    assert rows(encode(again, documents)) == rows(encode(Encoder(load("bytes"), backend="tokenizers"), documents))
    encoder.start_part()
    spared = [document for document in documents if document.line > 7]
    assert len(encode(encoder, spared).lines) == 33


def test_the_check_begins_anew_with_each_part_and_ignores_batches(load, monkeypatch):
    documents = [Document("text", line, text=f"hello {line}") for line in range(1, 13)]
    encoder = Encoder(load("bytes"), check_samples=2)
    spoil(encoder, monkeypatch, "hello 12")
    for document in documents:
        encode(encoder, [document])
    encoder.start_part()
    with pytest.raises(BackendMismatch):
        encode(encoder, documents[-1:])


def test_later_texts_are_sampled_too_and_long_ones_cut(load, monkeypatch):
    documents = [Document("text", line, text="word " * 4000) for line in range(1, 1500)]
    encoder = Encoder(load("bytes"), check_samples=0)
    compared = []
    honest = encoder._reference.encode
    monkeypatch.setattr(encoder._reference, "encode", lambda texts: compared.extend(texts) or honest(texts))
    for at in range(0, len(documents), 300):
        encode(encoder, documents[at : at + 300])
    assert 4 <= len(compared) <= 16
    assert max(map(len, compared)) == 2048


def test_a_mark_that_lies_sends_the_part_the_slow_way(load):
    loaded = load("bytes", "chatml")
    encoder = Encoder(loaded)
    expected = rows(encode(encoder, chats(*CHATS)))
    encoder.start_part()
    next(iter(encoder._preparer._renderers.values()))._prompt = ""
    with pytest.raises(BackendMismatch, match="should begin at char") as caught:
        encode(encoder, chats(*CHATS))
    again = encoder.fallback(caught.value)
    assert caught.value.what == "template"
    assert rows(encode(again, chats(*CHATS))) == expected
    assert [renderer.way for renderer in again._preparer._renderers.values()] == ["prefixes"]


def test_real_conversations(minimind, real_chats):
    batch = encode(Encoder(minimind), chats(*real_chats))
    assert_well_formed(batch)
    assert Encoder(minimind).backend_used == "gigatoken"
    for messages, (ids, mask) in zip(real_chats, rows(batch), strict=True):
        assert ids == minimind.hf.apply_chat_template(messages, return_dict=False)
        kept = minimind.hf.decode([number for number, bit in zip(ids, mask, strict=True) if bit])
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        assert kept == "".join(answer.lstrip("\n") + "<|im_end|>" for answer in answers)
    assert rows(batch) == rows(encode(Encoder(minimind, backend="tokenizers"), chats(*real_chats)))


def test_real_texts_with_neox(neox, real_chats):
    texts = ["\n".join(message["content"] for message in messages) for messages in real_chats]
    documents = [Document("text", line, text=text) for line, text in enumerate(texts, 1)]
    for (ids, _), text in zip(rows(encode(Encoder(neox), documents)), texts, strict=True):
        assert ids == neox.hf(text)["input_ids"]
