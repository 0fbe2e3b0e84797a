"""Which backend encodes, how it is compared with the reference, and what follows where they differ."""

import json

import pytest

from packer_cli.commands.tokenize import run_tokenize
from packer_cli.config import TokenizeConfig
from packer_cli.corpus.types import Document
from packer_cli.engine.local import LocalEngine
from packer_cli.errors import TokenizerError
from packer_cli.tokens import part
from packer_cli.tokens.encode import encoder as encoder_module
from packer_cli.tokens.encode.backends import BackendMismatch, GigatokenBackend
from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from tests.tokens.helpers import encode, encoder_of, rows, tokens, turns


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
            documents.append(tokens(line, [line, 1]))
    return documents


@pytest.mark.parametrize("kind", ["bytes", "nfc", "metaspace"])
def test_batches_and_backends_do_not_matter(load, kind):
    documents = mixed_documents()
    loaded = load(kind, "chatml")
    results = []
    for backend, size in (("auto", 60), ("auto", 1), ("auto", 7), ("tokenizers", 13)):
        encoder = encoder_of(loaded, backend=backend, check_samples=4)
        pieces = [encode(encoder, documents[at : at + size]) for at in range(0, len(documents), size)]
        results.append([row for piece in pieces for row in rows(piece)])
    assert results[0] == results[1] == results[2] == results[3]


def test_gigatoken_is_used_where_it_can(load):
    assert encoder_of(load("bytes")).backend_used == "gigatoken"
    assert encoder_of(load("bytes"), backend="tokenizers").backend_used == "tokenizers"


def test_what_gigatoken_cannot_load_goes_to_tokenizers(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    loaded = LoadedTokenizer(str(tmp_path))
    encoder = encoder_of(loaded)
    assert encoder.backend_used == "tokenizers"
    document = Document("prompt-completion", 1, prompt="a b ", completion="b a")
    assert rows(encode(encoder, [document])) == [([1, 2, 2, 1], [0, 0, 1, 1])]
    remedy = "use --tokenizer-backend auto or tokenizers"
    with pytest.raises(TokenizerError, match=rf"^gigatoken cannot load this tokenizer \(.+\); {remedy}$"):
        encoder_of(loaded, backend="gigatoken")
    loaded.hf.split_special_tokens = True
    with pytest.raises(TokenizerError) as caught:
        encoder_of(loaded, backend="gigatoken")
    assert str(caught.value) == (
        f"gigatoken cannot split special tokens, as this tokenizer's config asks for; {remedy}"
    )


def spoil(encoder, monkeypatch, line_text):
    """Make gigatoken give another id for texts that hold this."""
    honest = encoder._backend.encode

    def encode_wrongly(texts):
        ids = honest(texts)
        for number, text in enumerate(texts):
            if line_text in text:
                changed = ids.values.copy()
                changed[ids.offsets[number]] += 1
                ids = ids._replace(values=changed)
        return ids

    monkeypatch.setattr(encoder._backend, "encode", encode_wrongly)


def test_a_wrong_id_among_the_first_texts_sends_the_part_to_tokenizers(load, monkeypatch):
    documents = [Document("text", line, text=f"hello {line}") for line in range(1, 41)]
    encoder = encoder_of(load("bytes"), check_samples=8)
    spoil(encoder, monkeypatch, "hello 7")
    with pytest.raises(BackendMismatch, match=r"^gigatoken and tokenizers give different ids; ") as caught:
        encode(encoder, documents)
    assert caught.value.line == 7
    again = encoder.fallback(caught.value, "data.jsonl, line 7")
    assert again.backend_used == "tokenizers"
    again.start_part()
    assert again.warnings == [f"data.jsonl, line 7: {caught.value}"]
    assert caught.value.what == "ids"
    assert rows(encode(again, documents)) == rows(encode(encoder_of(load("bytes"), backend="tokenizers"), documents))
    encoder.start_part()
    spared = [document for document in documents if document.line > 7]
    assert len(encode(encoder, spared).lines) == 33


def test_the_check_begins_anew_with_each_part_and_ignores_batches(load, monkeypatch):
    documents = [Document("text", line, text=f"hello {line}") for line in range(1, 13)]
    encoder = encoder_of(load("bytes"), check_samples=2)
    spoil(encoder, monkeypatch, "hello 12")
    for document in documents:
        encode(encoder, [document])
    encoder.start_part()
    with pytest.raises(BackendMismatch):
        encode(encoder, documents[-1:])


def test_later_texts_are_sampled_too_and_long_ones_cut(load, monkeypatch):
    documents = [Document("text", line, text=f"{line} " * 4000) for line in range(1, 1500)]
    encoder = encoder_of(load("bytes"), check_samples=0)
    compared = []
    honest = encoder._reference.encode
    monkeypatch.setattr(encoder._reference, "encode", lambda texts: compared.extend(texts) or honest(texts))
    for at in range(0, len(documents), 300):
        encode(encoder, documents[at : at + 300])
    assert 4 <= len(compared) <= 32
    assert set(map(len, compared)) == {1024}


WRONG_IDS = "gigatoken and tokenizers give different ids; this part is encoded by tokenizers"
WRONG_TEXT = "the text differs from transformers'"


@pytest.mark.parametrize("order", [("wrong ids", "wrong text"), ("wrong text", "wrong ids")])
def test_a_part_of_several_files_may_need_both_slow_ways(order, repo, tmp_path, monkeypatch):
    """The warnings name the file and its line; the samples are those of the reference."""
    for name, answer in zip("abc", ("fine", *order), strict=True):
        lines = [json.dumps({"messages": turns("x", text)}) for text in ("fine", answer)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    tokenizer = str(repo / "examples" / "sample" / "tokenizer")
    config = TokenizeConfig(inputs=(str(tmp_path / "*.jsonl"),), tokenizer=tokenizer)
    expected = run_tokenize(config, tmp_path / "expected", LocalEngine(1))
    part._encoders.clear()
    encode_honestly, mismatch = GigatokenBackend.encode, ChatRenderer.mismatch

    def encode_wrongly(self, texts):
        ids = encode_honestly(self, texts)
        return ids._replace(values=ids.values + any("wrong ids" in text for text in texts))

    def mismatch_of_wrong_text(self, chat):
        return WRONG_TEXT if "wrong text" in chat.text else mismatch(self, chat)

    monkeypatch.setattr(GigatokenBackend, "encode", encode_wrongly)
    monkeypatch.setattr(ChatRenderer, "mismatch", mismatch_of_wrong_text)
    monkeypatch.setattr(encoder_module, "_ENCODED_TOGETHER", 1)
    index = run_tokenize(config, tmp_path / "out", LocalEngine(1))
    part._encoders.clear()
    assert len(index.parts) == 1
    why = {"wrong ids": WRONG_IDS, "wrong text": f"{WRONG_TEXT}; this part is rendered by transformers"}
    assert index.parts[0].warnings == tuple(
        f"{tmp_path}/{name}.jsonl, line 2: {why[wrong]}" for name, wrong in zip("bc", order, strict=True)
    )
    assert index.parts[0].xxh3 == expected.parts[0].xxh3
