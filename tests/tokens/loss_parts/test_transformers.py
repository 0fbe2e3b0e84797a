"""`--loss-on` with parts, beside transformers' own masks."""

import pytest

from tests.tokens.helpers import chats, encode, encoder_of, rows
from tests.tokens.loss_parts.chats import CHAT, assistant, call
from tests.tokens.loss_parts.tagged import LLAMA, TAGGED
from tests.tokens.published_templates import MISTRAL, QWEN3


@pytest.mark.parametrize("kind", ["bytes", "metaspace", "nfc"])
@pytest.mark.parametrize("loss_on", ["reasoning", "no-reasoning", "tool-calls"])
def test_masks_are_those_of_transformers_for_a_template_with_tags(load, kind, loss_on):
    plain = [dict(message, content=message["content"].replace("Oslo", "Tromsø")) for message in CHAT]
    conversations = [CHAT, plain, CHAT[:2], CHAT[2:], [*CHAT[:1], {"role": "assistant", "content": "84"}]]
    tokenizer = load(kind, QWEN3)
    got = rows(encode(encoder_of(tokenizer, loss_on=loss_on), chats(*conversations)))
    seen = 0
    for messages, (ids, mask) in zip(conversations, got, strict=True):
        expected = tokenizer.hf.apply_chat_template(
            messages, chat_template=TAGGED["qwen3"][loss_on], return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        assert mask == expected["assistant_masks"]
        seen += sum(mask)
    assert seen > 0


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
@pytest.mark.parametrize(("name", "template"), [("llama3.1", LLAMA), ("mistral", MISTRAL)])
def test_masks_of_tool_calls_without_their_content(load, kind, name, template):
    tokenizer = load(kind, template)
    conversations = [
        [
            *assistant(content=content, tool_calls=[call("f", x="Tromsø")]),
            {"role": "tool", "content": "3"},
            {"role": "assistant", "content": "Done."},
            *assistant(content="", tool_calls=[call("g")]),
        ]
        for content in ("Let me look.", "", "{", "f")
    ]
    got = rows(encode(encoder_of(tokenizer, loss_on="tool-calls"), chats(*conversations)))
    for messages, (ids, mask) in zip(conversations, got, strict=True):
        expected = tokenizer.hf.apply_chat_template(
            messages, chat_template=TAGGED[name]["tool-calls"], return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        assert mask == expected["assistant_masks"]
        assert sum(mask) > 4


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_the_last_turn_is_the_last_one_of_transformers(load, kind):
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer = load(kind, "chatml-generation")
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": content}
        for i, content in enumerate(["one é", "two", "three", "four 你好"])
    ]
    for conversation in (messages, messages[:2], [*messages, {"role": "user", "content": "five"}]):
        out = tokenizer.hf.apply_chat_template(
            conversation, chat_template=tokenizer.chat_template, return_dict=True, return_assistant_tokens_mask=True
        )
        (text,), (spans,) = render_jinja_template(
            [conversation], chat_template=tokenizer.chat_template, return_assistant_tokens_mask=True
        )
        first = tokenizer.hf(text, add_special_tokens=False).char_to_token(0, spans[-1][0])
        expected = [int(bit and place >= first) for place, bit in enumerate(out["assistant_masks"])]
        ((ids, mask),) = rows(encode(encoder_of(tokenizer, loss_on="last-turn"), chats(conversation)))
        assert (ids, mask) == (out["input_ids"], expected)
        assert sum(mask) < sum(out["assistant_masks"]) or len(conversation) == 2
