"""Ids and masks of every family of tokenizers, on hostile and real records, against transformers' own."""

import random
from pathlib import Path

import pytest

from packer_cli.corpus.types import Document
from packer_cli.tokens.encode import masks
from packer_cli.tokens.encode.backends import GigatokenBackend, ReferenceBackend
from packer_cli.tokens.encode.masks import mask_by_offsets
from packer_cli.tokens.encode.unicode import is_settled
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer
from tests.tokens.conftest import CORPUS
from tests.tokens.families import BY_TOKENIZERS, FAMILIES, LLAMA2_TEMPLATE, save_family
from tests.tokens.helpers import encode, encoder_of, rows

ROOT = Path(__file__).parent.parent.parent
PIECES = [
    *("Hello", " world", "don't", "naïve", "straße", "12345", "3.14", "x = [i for i in y]", "{'a': 1}", "-->", "!?"),
    *(" ", "  ", "   ", " " * 9, "\n", "\n\n", "\r\n", "\t", "\t\t", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b"),
    *("你好世界", "こんにちは", "안녕하세요", "\u1100\u1161\u11a8", "\uac00\u11a8", "שלום", "בְּרֵאשִׁית", "مرحبا"),
    *("हिन्दी", "\u0958", "\u09a1\u09bc", "\u09dc", "ไทย", "é", "e\u0301", "e\u0301\u0327", "e\u0327\u0301", "\u0301"),
    *("\u0338", "A\u030a", "\u212b", "ﬁ", "½", "…", "①", "Ⅷ", "🙂", "👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽"),
    *("\U0001fae8", "𝒳", "\U0010fffd", "\u0378", "\u2df3\u0899", "\u088f<I", "\U00032f2f", "\ufeff", "a"),
    *("\u2581", "\u2581a", "a\u2581b", "<0x41>", "\x00", "\x01", "\x1c", "\x7f", "\u0085", "\ufffd", "Ġ", "Ċ"),
    *("<s>", "</s>", "<unk>", " <s>", "<|im_end|>", "<|im_end|> ", "<|endoftext|>", "<mask>", " <mask>", "<|end|>"),
    *("<|end|>\n x", "<|user|>  ", "<end_of_turn>", "<bos>", "<｜User｜>", "<think>", "<|eot_id|>", "[INST]", "<|"),
]  # fmt: skip


def hostile(seed, real):
    """300 records: prompt-completion, alpaca-like texts, and chats."""
    dice = random.Random(seed)

    def text(most):
        return "".join(dice.choices(PIECES, k=dice.randint(0, most)))

    records = []
    for line in range(1, 301):
        if line % 10 == 0:
            records.append(Document("messages", line, messages=dice.choice(real)))
        elif line % 2:
            count = dice.randint(1, 3)
            turns = [{"role": role, "content": text(6)} for _ in range(count) for role in ("user", "assistant")]
            records.append(Document("messages", line, messages=turns))
        else:
            records.append(Document("prompt-completion", line, prompt=text(6), completion=text(5)))
    return records


REAL = [
    [
        {"role": "user", "content": "What is 12 x 7?"},
        {"role": "assistant", "content": "12 x 7 is 84.\n\nAnything else?"},
    ],
    [{"role": "user", "content": "Übersetze: good morning"}, {"role": "assistant", "content": "„Guten Morgen“ 🙂"}],
    [
        {"role": "user", "content": "def f(x):\n    return x\n"},
        {"role": "assistant", "content": "```python\ndef f(x: int) -> int:\n\treturn x  # identity\n```"},
        {"role": "user", "content": "谢谢"},
        {"role": "assistant", "content": "不客气。"},
    ],
]


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    """family(name) -> LoadedTokenizer, each trained once."""
    docs = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))[:2]]
    texts = [*CORPUS, *PIECES * 3, *docs]
    loaded = {}

    def get(name):
        if name not in loaded:
            folder = tmp_path_factory.mktemp("families") / name
            if name == "sentencepiece":
                loaded[name] = LoadedTokenizer(str(save_model(folder, texts)), chat_template=LLAMA2_TEMPLATE)
                loaded[name].hf.chat_template = LLAMA2_TEMPLATE
            else:
                loaded[name] = LoadedTokenizer(str(save_family(name, folder, texts)))
        return loaded[name]

    return get


def save_model(folder, texts):
    """SentencePiece's own BPE as it is trained by default: a charsmap, and no spaces beside each other."""
    import sentencepiece

    folder.mkdir()
    (folder / "texts.txt").write_text("\n".join(texts).replace("\0", ""), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "texts.txt"),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=1200,
        byte_fallback=True,
        character_coverage=0.98,
        minloglevel=3,
    )
    return folder / "tokenizer.model"


class Reference:
    """transformers' ids and masks of records, and by offsets where `apply_chat_template` has none to give."""

    def __init__(self, loaded):
        from tokenizers import processors

        self.loaded = loaded
        self.bare = type(loaded.hf.backend_tokenizer).from_str(loaded.backend_json)
        self.bare.post_processor = processors.Sequence([])  # What it does to offsets leaves out spaces.
        self.num_confirmed = 0

    def rows(self, documents):
        """Line -> (ids, mask); records whose own text gives no token are left out, whatever would go around it."""
        found = {document.line: self.row(document) for document in documents}
        around = [*self.loaded.prefix_ids, *self.loaded.suffix_ids]
        is_chat = {document.line: document.kind == "messages" for document in documents}
        return {line: row for line, row in found.items() if row[0] != ([] if is_chat[line] else around)}

    def row(self, document):
        if document.kind == "messages":
            return self.chat(document.messages)
        text = document.prompt + document.completion
        ids, mask = self.by_offsets(text, [(len(document.prompt), len(text))], whole=True)
        ids = [*self.loaded.prefix_ids, *ids, *self.loaded.suffix_ids]
        assert ids == self.loaded.hf(text)["input_ids"]
        # What goes before a text is trained on where the text is trained on from its beginning.
        return ids, mask[:1] * len(self.loaded.prefix_ids) + mask + [1] * len(self.loaded.suffix_ids)

    def chat(self, messages):
        from transformers.utils.chat_template_utils import render_jinja_template

        hf = self.loaded.hf
        (text,), (spans,) = render_jinja_template(
            [messages],
            chat_template=self.loaded.chat_template,
            return_assistant_tokens_mask=True,
            **hf.special_tokens_map,
        )
        ids, mask = self.by_offsets(text, spans, whole=False)
        out = hf.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        assert ids == out["input_ids"]
        if mask == out["assistant_masks"]:
            self.num_confirmed += 1
        else:
            # Where a border falls on a char that no token holds, transformers marks all that follows, or nothing.
            encoding = hf(text, add_special_tokens=False)
            borders = [char for start, stop in spans for char in (start, stop - 1) if stop > start]
            assert any(encoding.char_to_token(0, char) is None for char in borders), (text, spans)
        return ids, mask

    def by_offsets(self, text, spans, *, whole):
        """Marked from the first token that reaches into a span to the last one that begins in it."""
        encoding = self.bare.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        mask = [0] * len(ids)
        for start, stop in spans:
            if stop <= start:
                continue
            first = next((number for number, (_, end) in enumerate(offsets) if end > start), len(ids))
            if whole:
                past = next((number for number, (begin, _) in enumerate(offsets) if begin >= stop), len(ids))
            else:
                past = 1 + next((number for number, (_, end) in enumerate(offsets) if end > stop - 1), len(ids))
            mask[first:past] = [1] * len(mask[first:past])
        return ids, mask


MARKED = ("llama1", "llama2", "mistral", "metaspace", "phi3", "gemma")


def holds(document, is_it):
    contents = [document.prompt, document.completion, *(turn["content"] for turn in document.messages)]
    return any(map(is_it, contents))


def texts_by_ranges(monkeypatch):
    """A list that grows by each text whose marks take offsets from `tokenizers`."""
    taken = []

    def count(starts, *rest, **options):
        taken.append(len(starts))
        return mask_by_offsets(starts, *rest, **options)

    monkeypatch.setattr(masks, "mask_by_offsets", count)
    return taken


FEW = ("bert", "llama1", "metaspace", "roberta", "sentencepiece")


@pytest.mark.parametrize("name", [*FAMILIES, "sentencepiece"])
def test_hostile_records(family, name, monkeypatch):
    loaded = family(name)
    documents = hostile(7, REAL)[: 100 if name in FEW else 300]
    encoder = encoder_of(loaded)
    by_ranges = texts_by_ranges(monkeypatch)
    assert encoder.backend_used == ("tokenizers" if name in BY_TOKENIZERS else "gigatoken")
    batch = encode(encoder, documents)
    reference = Reference(loaded)
    expected = reference.rows(documents)
    got = dict(zip(batch.lines.tolist(), rows(batch), strict=True))
    assert sorted(got) == sorted(expected)
    for line, row in expected.items():
        assert got[line] == row, (documents[line - 1], loaded.hf.convert_ids_to_tokens(row[0]))
    if name not in ("bert", "sentencepiece"):  # They leave out spaces, so that few borders are on a token.
        assert reference.num_confirmed > len(documents) // 4
    marked = sum(holds(document, lambda text: "\u2581" in text) for document in documents)
    young = sum(holds(document, lambda text: not is_settled(text)) for document in documents)
    taken = len(by_ranges)
    if name in (*BY_TOKENIZERS, "sentencepiece"):
        assert taken == len(documents)
    elif name in ("neox", "qwen2"):  # And texts in which a char composes over a border of what is trained on.
        assert young <= taken < young + 0.15 * len(documents)
    elif name in ("metaspace", "roberta"):
        assert taken < len(documents)
    else:
        assert taken == (marked if name in MARKED else 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_ordinary_records_need_no_offsets(family, name, monkeypatch):
    loaded = family(name)
    documents = [Document("messages", line, messages=messages) for line, messages in enumerate(REAL, 1)]
    documents.append(Document("prompt-completion", 4, prompt="Capital of Perú?\n", completion="Lima, é 你好 🙂"))
    encoder = encoder_of(loaded)
    by_ranges = texts_by_ranges(monkeypatch)
    assert encode(encoder, documents).loss_mask.sum() > 0
    assert len(by_ranges) == (4 if name in BY_TOKENIZERS else 0)


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - BY_TOKENIZERS))
def test_ids_of_hostile_texts(family, name):
    loaded = family(name)
    reference = ReferenceBackend(loaded)
    backend = GigatokenBackend(loaded, reference)
    dice = random.Random(3)
    lines = [*PIECES, "\n", "\nA", "x\nb", "9\nz", ".\nq", "'\ns", "\n\u0301", "!\n", "\r\nx", "\U0001fae8"]
    lines += [
        " x",
        "  a",
        "    None,\n",
        "\n    ",
        " don't",
        "'LL",
        "\t x",
        " e\u0301",
        " 12a",
        "\u0301 b",
        "\u07f3\u07fd",
    ]
    lines += [
        "x=",
        "=\u0338",
        "a_b",
        "7: '",
        "don't,",
        "U.S.",
        "(x)->y",
        "a/\n",
        "3.14",
        "A\u0301,",
        'é"',
        "HTTPServer!",
    ]
    texts = ["".join(dice.choices(lines, k=dice.randint(1, 40))) for _ in range(150)]
    expected = reference.encode(texts)
    assert backend.encode(texts).values.tolist() == expected.values.tolist()
