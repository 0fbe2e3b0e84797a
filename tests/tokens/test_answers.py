"""Preference pairs and groups: the ids and the loss of TRL's own preparation, and what becomes of bad ones."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.config.models import read_loss_on
from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.types import DocumentBatch
from packer_cli.tokens.encode.branches import OTHERS_TURNS
from packer_cli.tokens.templates.written import EARLIER_REASONING
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer, read_template
from tests.tokens.helpers import encoder_of

from .helpers import turns

TEXTS = [
    {"prompt": "The quick brown", "chosen": " fox jumps.", "rejected": " dog"},
    {"prompt": "Say one. ", "chosen": "Two.", "rejected": "one"},
    {"prompt": "How are you?\n", "chosen": "\n\nfine", "rejected": "\nI am fine."},
    {"prompt": "nai", "chosen": "ve café", "rejected": "l"},
    {"prompt": "", "chosen": "hello world", "rejected": "hello"},
    {"prompt": "你好", "chosen": "世界 🙂", "rejected": "世"},
    {"prompt": "a b", "chosen": "EOS", "rejected": "no EOS"},
    {"prompt": "same", "chosen": " as that", "rejected": " as that"},
]
IMPLICIT_TEXTS = [
    {"chosen": "Human: Ask one. Assistant: Say two.", "rejected": "Human: Ask one. Assistant: Say one."},
    {"chosen": "Ask one. Say", "rejected": "Ask one. Say two."},
]


def of_chats(prompt, chosen, rejected):
    return {"prompt": prompt, "chosen": turns("", chosen)[1:], "rejected": turns("", rejected)[1:]}


THOUGHT = "<think>\nAsk two.\n</think>\n\nSay two."
CHATS = [
    of_chats(turns("Ask one."), "Say one.", "Say two."),
    of_chats(turns("Ask one.", THOUGHT, "Ask two."), THOUGHT, "Say one."),
    of_chats(turns("Ask one.", "Say one.", "12"), "", "é 🙂"),
    of_chats([{"role": "system", "content": "Be brief."}, *turns("Ask one.")], "\n\nSay", " one. \n"),
]
CHATS[0]["rejected"] += turns("Ask two.", "Say two.")
IMPLICIT_CHATS = [{name: [*pair["prompt"], *pair[name]] for name in ("chosen", "rejected")} for pair in CHATS]


def by_trl(records, tokenizer):
    """Prompt, chosen and rejected ids of each, as `DPOTrainer` makes them; whole ids as `RewardTrainer` makes them."""
    datasets = pytest.importorskip("datasets")
    dpo = pytest.importorskip("trl").DPOTrainer
    reward = pytest.importorskip("trl").RewardTrainer
    hf = tokenizer.hf
    hf.chat_template = tokenizer.chat_template
    args = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    data = datasets.Dataset.from_list(records)
    pairs = dpo._prepare_dataset(SimpleNamespace(_tokenizer=hf), data, hf, args, "train")
    whole = reward._prepare_dataset(None, data, hf, args, "train")
    return [[(row["prompt_ids"], row["chosen_ids"]), (row["prompt_ids"], row["rejected_ids"])] for row in pairs], [
        [row["chosen_ids"], row["rejected_ids"]] for row in whole
    ]


def encode(encoder, records, **options):
    documents = [Normalizer(**options).parse(record, line) for line, record in enumerate(records, 1)]
    return encoder.encode(DocumentBatch(documents=documents))


def divided(batch):
    """The ids before the loss and with it, of each sample of each item."""
    samples = batch.samples
    rows = []
    for start, stop in zip(samples.offsets[:-1], samples.offsets[1:], strict=True):
        mask = samples.loss_mask[start:stop] != 0
        mask[0] = False
        border = int(mask.argmax())
        assert mask[border:].all()
        ids = samples.input_ids[start:stop].tolist()
        rows.append((ids[:border], ids[border:]))
    offsets = batch.items.offsets
    return [rows[a:b] for a, b in pairwise(offsets)]


def assert_as_trl(tokenizer, records):
    pairs, whole = by_trl(records, tokenizer)
    batch = encode(encoder_of(tokenizer, append_eos="auto"), records)
    assert not batch.rejects
    for record, got, pair, ids in zip(records, divided(batch), pairs, whole, strict=True):
        assert [a + b for a, b in got] == [a + b for a, b in pair] == ids, record
        if pair[0][0]:  # The first token never has a loss.
            assert got == pair, record


@pytest.mark.parametrize("kind", ["bytes", "nfc", "bos", "metaspace"])
@pytest.mark.parametrize("records", [TEXTS, IMPLICIT_TEXTS], ids=["texts", "implicit"])
def test_texts_are_as_trl_makes_them(load, kind, records):
    tokenizer = load(kind)
    eos = tokenizer.hf.eos_token
    assert_as_trl(tokenizer, [{name: text.replace("EOS", eos) for name, text in each.items()} for each in records])


@pytest.mark.parametrize("template", ["chatml", "qwen3", "llama2", "eos-between"])
@pytest.mark.parametrize("records", [CHATS, IMPLICIT_CHATS], ids=["chats", "implicit"])
def test_conversations_are_as_trl_makes_them(load, template, records):
    assert_as_trl(load("bytes", template), records)


@pytest.mark.parametrize(
    "template",
    [
        "chatml",
        "qwen3",
        "gemma3",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama3.1", "phi3", "mistral")),
    ],
)
def test_pairs_of_real_tokenizers_are_as_trl_makes_them(shared_data, real_chats, template):
    folder = str(shared_data / "tokenizers" / "gpt-neox-20b")
    tokenizer = LoadedTokenizer(folder, chat_template=read_template(template))  # Whose tokens are texts here.
    records = [
        {"chosen": chat[: 2 * len(chat) // 2], "rejected": [*chat[:-1], {**chat[-1], "content": other[-1]["content"]}]}
        for chat, other in zip(real_chats[:100], real_chats[100:200], strict=True)
        if chat[-1]["role"] == "assistant"
    ]
    assert len(records) > 50
    assert_as_trl(tokenizer, records)


@pytest.mark.parametrize("template", ["qwen3", "llama3.1", pytest.param("qwen2.5", marks=pytest.mark.slow)])
def test_pairs_with_tools_and_reasoning_are_as_trl_makes_them(shared_data, template):
    folder = str(shared_data / "tokenizers" / "gpt-neox-20b")
    tokenizer = LoadedTokenizer(folder, chat_template=read_template(template))
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    told = [called, {"role": "tool", "content": "2"}, {"role": "assistant", "content": "It is 2."}]
    thought = {"role": "assistant", "content": "No.", "reasoning_content": "Think hard."}
    pairs = [
        {"prompt": turns("Ask one."), "chosen": told, "rejected": [{"role": "assistant", "content": "No."}]},
        {"prompt": [*turns("Ask one."), *told[:2]], "chosen": told[2:], "rejected": [thought]},
        {"prompt": [*turns("Ask one."), thought, *turns("Two?")], "chosen": [thought], "rejected": told[2:]},
    ]
    for pair in pairs:  # One by one: a table would give every message every key.
        assert_as_trl(tokenizer, [{**pair, "tools": [{"type": "function", "function": function}]}])


@pytest.mark.parametrize("name", ["gpt-neox-20b", "minimind-chatml"])
def test_pairs_of_real_texts_are_as_trl_makes_them(shared_data, real_chats, name):
    tokenizer = LoadedTokenizer(str(shared_data / "tokenizers" / name), eos_token="<|endoftext|>")
    texts = [(chat[-2]["content"] or "", chat[-1]["content"] or "") for chat in real_chats if len(chat) > 1]
    assert_as_trl(
        tokenizer,
        [
            {"prompt": prompt[: len(prompt) - cut], "chosen": prompt[len(prompt) - cut :] + answer, "rejected": answer}
            for (prompt, answer), cut in zip(texts, [0, 1, 2, 5] * 50, strict=False)
        ],
    )


def divided_by_hand(hf, prompt, answers):
    """Prompt and completion ids of each answer, by TRL's rule."""
    alone = hf(prompt)["input_ids"]
    rows = [
        hf(prompt + answer + ("" if answer.endswith(hf.eos_token) else hf.eos_token))["input_ids"]
        for answer in answers
    ]
    borders = [
        next((i for i, (a, b) in enumerate(zip(alone, row, strict=False)) if a != b), len(alone)) for row in rows
    ]
    return [(row[: min(borders)], row[min(borders) :]) for row in rows]


@pytest.mark.parametrize("loss_on", ["completion", "last-turn", "no-reasoning"])
def test_turns_of_others_in_answers_are_counted_if_they_carry_a_loss(load, loss_on):
    encoder = encoder_of(load("bytes", "chatml"), loss_on=read_loss_on(loss_on))
    samples = encode(encoder, CHATS).samples
    assert encoder.unused[OTHERS_TURNS] == (loss_on == "completion")
    rejected = slice(*samples.offsets[1:3])
    text = encoder._backends.tokenizer.hf.decode(samples.input_ids[rejected][samples.loss_mask[rejected] != 0])
    assert ("Ask two." in text) == (loss_on == "completion")


def test_reasoning_of_earlier_turns_of_an_answer_is_counted(load):
    thinking = turns("Ask one.", THOUGHT, "Ask two.", THOUGHT)
    more = turns("Say one.", "Ask two.")
    for record, loss_on, number in (
        ({"prompt": thinking[:1], "completion": thinking[1:]}, "completion", 1),
        ({"prompt": thinking[:1], "completion": thinking[1:]}, "reasoning", 1),
        ({"prompt": thinking[:1], "completion": thinking[1:]}, "last-turn", 0),
        ({"prompt": thinking[:1], "chosen": thinking[1:], "rejected": turns("", "Say one.")[1:]}, "completion", 1),
        ({"prompt": thinking[:3], "completion": thinking[3:]}, "completion", 0),
        ({"prompt": thinking[:3], "completion": [thinking[3], *more, more[1]]}, "completion", 1),
        ({"prompt": thinking[:3], "completion": [*more[::-1], thinking[2], thinking[3]]}, "completion", 0),
        ({"messages": [thinking[0], {**thinking[1], "weight": 0}, *thinking[2:]]}, "completion", 0),
    ):
        encoder = encoder_of(load("bytes", "qwen3"), loss_on=loss_on)
        assert not encode(encoder, [record]).rejects
        assert encoder.unused[EARLIER_REASONING] == number, record


TEXT = st.text("ab 1\né🙂你", max_size=8)


@pytest.mark.parametrize("options", [{}, {"backend": "tokenizers"}])
@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
@given(prompt=TEXT.filter(bool), answers=st.lists(TEXT, min_size=2, max_size=4))
@settings(max_examples=60, deadline=None)
def test_answers_fork_anywhere(load, kind, options, prompt, answers):
    """Inside a character, an answer that begins another, equal ones, and none in common with the prompt alone."""
    tokenizer = load(kind)
    encoder = encoder_of(tokenizer, append_eos="auto", **options)
    (found,) = divided(encode(encoder, [{"prompt": prompt, "completions": answers}]))
    expected = divided_by_hand(tokenizer.hf, prompt, answers)
    if expected[0][0]:
        assert found == expected
    assert [a + b for a, b in found] == [a + b for a, b in expected]
