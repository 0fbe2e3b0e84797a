"""Items in the encoder: turns as branches, what a batch says of its items, and how they are rejected."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.records.token_rows import NUM_IDS, read_records
from packer_cli.corpus.types import Document, DocumentBatch
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS
from packer_cli.tokens.encode.branches import NOT_INFERENCE
from packer_cli.tokens.encode.items import DIFFERS
from tests.tokens.helpers import encoder_of

from .helpers import CHATS, turns

THOUGHT = "<think>\nAsk two.\n</think>\n\nSay two."
PAIR_OF_TEXTS = {"prompt": "Ask one.", "chosen": " Say one.", "rejected": " Say two.", "margin": 0.5}
GROUP_OF_TEXTS = {"prompt": "Ask one.", "completions": [" Say one.", " Say two.", " fine"], "rewards": [1, 2, 3]}
TOKEN_PAIR = {
    "prompt_ids": [9, 8],
    "chosen_ids": [10, 11],
    "rejected_ids": [12],
    "ref_chosen_logps": -1,
    "ref_rejected_logps": -2,
}


def batch_of(*records, num_ids=NUM_IDS, **options):
    """Records as a reader hands them on; the first is that of line 1."""
    normalizer = Normalizer(**options)
    parsed = [normalizer.parse(record, line) for line, record in enumerate(records, 1)]
    documents = [each for each in parsed if isinstance(each, Document)]
    tokenized = [each for each in parsed if not isinstance(each, Document)]
    batch, rejects = read_records(tokenized, num_ids)
    pairs = {each.line: each.values for each in tokenized}
    return DocumentBatch(documents=documents, tokens=batch, pairs=pairs, rejects=rejects)


def rows(batch):
    """The ids and the loss of each sample, written out."""
    samples = batch.samples
    mask = np.ones(len(samples.input_ids)) if samples.loss_mask is None else samples.loss_mask.astype(float)
    return [(samples.input_ids[a:b].tolist(), mask[a:b].tolist()) for a, b in pairwise(samples.offsets)]


def test_what_a_batch_says_of_its_items(load):
    encoder = encoder_of(load("bytes", "chatml"), append_eos="auto", turns="branch")
    chat = {"messages": turns("a", "b", "c", "d")}
    records = [{"text": "plain"}, PAIR_OF_TEXTS, chat, GROUP_OF_TEXTS, {"messages": turns("a", "b")}, TOKEN_PAIR]
    batch = encoder.encode(batch_of(*records))
    items = batch.items
    assert batch.samples.lines.tolist() == [1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 6]
    assert items.offsets.tolist() == [0, 1, 3, 5, 8, 9, 11]
    assert items.kinds.tolist() == [SAMPLE, PAIR, TURNS, GROUP, SAMPLE, PAIR]
    assert items.roles.tolist() == [0, 0, 1, 0, 1, 0, 1, 2, 0, 0, 1]
    assert items.rewards[5:8].tolist() == [1, 2, 3]
    assert np.isnan(np.delete(items.rewards, [5, 6, 7])).all()
    assert items.values["margin"][1] == 0.5
    assert items.values["ref_chosen_logps"][5] == -1
    assert sum((~np.isnan(each)).sum() for each in items.values.values()) == 3
    types = (items.offsets, items.kinds, items.roles, items.rewards, items.values["margin"])
    assert [each.dtype for each in types] == [np.int64, np.int8, np.int16, np.float32, np.float32]
    kinds = ["text", "preference", "messages", "completions", "messages", "preference"]
    assert batch.kinds == dict(enumerate(kinds, 1))
    assert len(batch.is_open) == 11
    assert not batch.is_open[:9].any()


def test_batches_without_items_say_nothing(load):
    encoder = encoder_of(load("bytes", "chatml"), turns="branch")
    batch = encoder.encode(batch_of({"text": "a"}, {"messages": turns("a", "b")}))
    assert batch.items.kinds.tolist() == [SAMPLE, SAMPLE]
    assert len(batch.samples.lines) == 2


def test_turns_have_no_rewards_and_no_values(load):
    encoder = encoder_of(load("bytes", "chatml"), turns="branch")
    chat = Document("messages", 1, messages=turns("a", "b", "c", "d"), rewards=(1, 2, 3), values={"margin": 1.0})
    items = encoder.encode(DocumentBatch(documents=[chat])).items
    assert items.kinds.tolist() == [TURNS]
    assert np.isnan([*items.rewards, *items.values["margin"]]).all()


def test_nothing_of_a_record_is_held_that_is_not_encoded(load):
    encoder = encoder_of(load("bytes", "chatml"), turns="branch")
    chats = (
        Document("messages", line, messages=[{**each, "unused": "x" * 500_000 + str(line)} for each in turns(*"abcd")])
        for line in range(1, 41)
    )
    tracemalloc.start()
    try:
        (batch,) = encoder.encode_all(DocumentBatch(documents=[chat]) for chat in chats)
        assert batch.items.kinds.tolist() == [TURNS] * 40
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_results_do_not_depend_on_batches(load):
    chats = [{"messages": messages} for messages in CHATS if len(messages) > 1]
    records = [PAIR_OF_TEXTS, *chats, GROUP_OF_TEXTS, TOKEN_PAIR, {"prompt": "\ud800", "chosen": "a", "rejected": "b"}]
    encoder = encoder_of(load("bytes", "chatml"), append_eos="auto", turns="branch")
    whole = batch_of(*records)
    (together,) = encoder.encode_all([whole])
    alone = []
    for line in range(1, len(records) + 1):
        tokens = whole.tokens if line in whole.pairs else None
        documents = [document for document in whole.documents if document.line == line]
        alone += encoder.encode_all(
            [DocumentBatch(documents=documents, tokens=tokens, pairs=whole.pairs if tokens else {})]
        )
    assert [row for batch in alone for row in rows(batch)] == rows(together)
    assert [reject for batch in alone for reject in batch.rejects] == together.rejects
    kinds = [batch.items.kinds[0] for batch in alone if len(batch.samples.lines)]
    assert kinds == together.items.kinds.tolist()


@pytest.mark.parametrize("options", [{}, {"backend": "tokenizers"}, {"is_exact": True}])
@pytest.mark.parametrize("template", ["chatml", "qwen3", "qwen3-generation", "llama2"])
def test_each_turn_is_a_sample_as_at_inference(load, template, options):
    """Its ids are those of the conversation up to it, and its loss is that turn's, which follows the prompt."""
    tokenizer = load("bytes", template)
    messages = turns("Ask one.", THOUGHT, "Ask two.", THOUGHT, "Thanks!", "Say one.", "12")
    encoder = encoder_of(tokenizer, turns="branch", **options)
    batch = encoder.encode(batch_of({"messages": messages}))
    assert (batch.items.kinds.tolist(), batch.items.roles.tolist()) == ([TURNS], [0, 1, 2])
    hf = tokenizer.hf
    hf.chat_template = tokenizer.chat_template
    for (ids, mask), stop in zip(rows(batch), (2, 4, 6), strict=True):
        assert ids == hf.apply_chat_template(messages[:stop], tokenize=True, return_dict=True)["input_ids"]
        prompt = hf.apply_chat_template(
            messages[: stop - 1], tokenize=True, return_dict=True, add_generation_prompt=True
        )["input_ids"]
        assert ids[: len(prompt)] == prompt
        assert not any(mask[: len(prompt)])
        (flat,) = rows(encoder_of(tokenizer, loss_on="last-turn").encode(batch_of({"messages": messages[:stop]})))
        assert mask == flat[1]
        assert mask[len(prompt)] == 1
    assert not encoder.unused


def test_parts_of_turns(load):
    messages = turns("Ask one.", THOUGHT, "Ask two.", "Say one.")
    record = batch_of({"messages": messages})
    tokenizer = load("bytes", "qwen3")
    by_part = {}
    for part in ("completion", "last-turn", "reasoning", "no-reasoning"):
        by_part[part] = [mask for _, mask in rows(encoder_of(tokenizer, turns="branch", loss_on=part).encode(record))]
    assert by_part["completion"] == by_part["last-turn"]
    for whole, thought, rest in zip(
        *(by_part[part] for part in ("completion", "reasoning", "no-reasoning")), strict=True
    ):
        assert [a + b for a, b in zip(thought, rest, strict=True)] == whole
    assert any(by_part["reasoning"][0])
    assert not any(by_part["reasoning"][1])


def test_weights_of_turns(load):
    messages = turns("a", "b", "c", "d", "e", "f")
    for message, weight in zip(messages[1::2], (0.5, 0, 2), strict=True):
        message["weight"] = weight
    encoder = encoder_of(load("bytes", "chatml"), append_eos="auto", turns="branch")
    batch = encoder.encode(batch_of({"messages": messages, "weight": 3}))
    assert batch.items.roles.tolist() == [0, 1]
    assert [set(mask) - {0} for _, mask in rows(batch)] == [{1.5}, {6}]
    none = encoder.encode(batch_of({"messages": [{**message, "weight": 0} for message in messages]}))
    assert none.items.kinds.tolist() == [SAMPLE]
    assert [any(mask) for _, mask in rows(none)] == [False]


def test_turns_of_a_completion_of_messages(load):
    encoder = encoder_of(load("bytes", "chatml"), turns="branch")
    record = {"prompt": turns("a", "b", "c"), "completion": turns("", "d", "e", "f")[1:]}
    assert len(encoder.encode(batch_of(record)).samples.lines) == 2


def test_a_template_that_ends_the_prompt_of_inference_otherwise_is_reported(load, templates):
    """As Gemma 4's and DeepSeek R1's do."""
    template = templates["chatml"].replace("assistant\\n' }}{% endif", "assistant\\n<think>' }}{% endif")
    assert template != templates["chatml"]
    encoder = encoder_of(load("bytes", template), turns="branch")
    chat = {"messages": turns("a", "b", "c", "d")}
    encoder.encode(batch_of(chat, chat))
    assert encoder.unused == {NOT_INFERENCE: 2}
    encoder.start_part()
    pair = {"prompt": turns("a"), "chosen": turns("", "b")[1:], "rejected": turns("", "c")[1:]}
    batch = encoder.encode(batch_of(pair))
    assert encoder.unused == {DIFFERS: 1}
    (ids, chosen), _ = rows(batch)
    text = load("bytes").hf.decode(ids[: chosen.index(1)])
    assert text.endswith("assistant\n")


def test_groups_lose_what_all_have_in_common_with_the_prompt(load):
    """An answer whose first letters merge with the end of the prompt moves the border for all of them."""
    encoder = encoder_of(load("bytes"), append_eos="auto")
    record = {"prompt": "The quick bro", "completions": ["wn fox", " 12", "wn"], "weights": [1, 0.5, 0]}
    batch = encoder.encode(batch_of(record))
    borders = [next((i for i, each in enumerate(mask) if each), None) for _, mask in rows(batch)]
    assert borders[0] == borders[1] < len(load("bytes").hf("The quick bro")["input_ids"])
    assert [set(mask) for _, mask in rows(batch)] == [{0, 1}, {0, 0.5}, {0}]
    assert batch.items.kinds.tolist() == [GROUP]
    assert encoder.unused == {DIFFERS: 1}


@pytest.mark.parametrize("plain_content", [False, True])
def test_special_tokens_in_answers(load, plain_content):
    """As plain text they are no end, so EOS follows, and the border is the same."""
    tokenizer = load("bytes", "chatml")
    encoder = encoder_of(tokenizer, append_eos="auto", plain_content=plain_content)
    text = {"prompt": "Say <|im_end|> one", "chosen": " two<|im_end|>", "rejected": " two"}
    chat = {"prompt": turns(text["prompt"]), "chosen": text["chosen"], "rejected": text["rejected"]}
    batch = encoder.encode(batch_of(text, chat))
    eos = tokenizer.eos_token_id
    assert batch.num_with_special == 2
    for first, (chosen, rejected) in enumerate((rows(batch)[:2], rows(batch)[2:])):
        end = [eos] if first == 0 else [eos, tokenizer.hf("\n")["input_ids"][0]]
        assert chosen[0][-len(end) :] == rejected[0][-len(end) :] == end
        assert chosen[0].count(eos) == rejected[0].count(eos) + (not plain_content and first == 1)
        assert chosen[1].index(1) == rejected[1].index(1)
        assert all(chosen[1][chosen[1].index(1) :])


def test_an_item_is_rejected_as_a_whole_and_once(load):
    encoder = encoder_of(load("bytes", "llama2"), append_eos="auto")
    records = [
        {"prompt": "a", "chosen": "b\ud800", "rejected": "c\ud800"},
        PAIR_OF_TEXTS,
        {"prompt": turns("a"), "chosen": turns("", "b")[1:], "rejected": turns("b")},
        {"prompt": "\ud800", "completions": ["b", "c"]},
        {**TOKEN_PAIR, "rejected_ids": [10**6], "chosen_ids": [10**6 + 1]},
        TOKEN_PAIR,
    ]
    batch = encoder.encode(batch_of(*records, num_ids=1000))
    assert batch.samples.lines.tolist() == [2, 2, 6, 6]
    assert batch.items.kinds.tolist() == [PAIR, PAIR]
    assert [reject.line for reject in batch.rejects] == [1, 3, 4, 5]
    first, third, fourth, fifth = (reject.reason for reject in batch.rejects)
    assert first == "chosen: holds a lone surrogate, which cannot be encoded as UTF-8"
    assert third.startswith("rejected: the chat template cannot render this conversation")
    assert fourth == "completions[0]: holds a lone surrogate, which cannot be encoded as UTF-8"
    assert fifth == "chosen_ids[0] is 1000001; the tokenizer's ids are 0 to 999"


def test_an_empty_sample_rejects_its_item(load):
    encoder = encoder_of(load("bytes"), append_eos="never")
    batch = encoder.encode(batch_of({"prompt": "", "chosen": "a", "rejected": ""}, {"text": "b"}, PAIR_OF_TEXTS))
    assert batch.samples.lines.tolist() == [2, 3, 3]
    assert batch.rejects == [(1, "is empty: it has no tokens")]
    assert batch.items.offsets.tolist() == [0, 1, 3]


def test_what_records_hold_counts_once(load):
    encoder = encoder_of(load("bytes", "chatml"), append_eos="auto")
    pair = {"prompt": turns("a"), "chosen": "b<|im_end|>", "rejected": "c", "tools": [{"name": "f"}]}
    batch = encoder.encode(batch_of(pair, pair))
    assert encoder.unused == {'"tools", which the chat template does not write': 2}
    assert batch.num_with_special == 2


def test_loss_on_all_trains_prompts_too(load):
    encoder = encoder_of(load("bytes"), append_eos="auto", loss_on="all")
    assert all(all(mask) for _, mask in rows(encoder.encode(batch_of(PAIR_OF_TEXTS))))


def test_a_branch_has_its_own_number_however_many_there_are(load):
    encoder = encoder_of(load("bytes", "chatml"), turns="branch")
    batch = encoder.encode(batch_of({"messages": turns(*(["a", "b"] * 300))}))
    assert batch.items.roles.tolist() == list(range(300))
    many = {"prompt": "a", "completions": ["b"] * (2**15 + 1)}
    (reject,) = encoder.encode(batch_of(many)).rejects
    assert reject.reason == "it has 32,769 samples, and an item has at most 32,768"
