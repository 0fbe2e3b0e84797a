"""Templates that leave out the thinking of earlier turns: ids and what is trained on, beside transformers."""

import pytest

from tests.tokens.helpers import chats, encode, encoder_of, rows
from tests.tokens.published_templates import PUBLISHED

TURNS = [
    {"role": "user", "content": "Ask one."},
    {"role": "assistant", "content": "<think>\nhow\n</think>\n\nSay one."},
    {"role": "user", "content": "Ask two."},
    {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nSay two."},
]
FIELDS = [
    TURNS[0],
    {"role": "assistant", "content": "Say one.", "reasoning_content": "how"},
    TURNS[2],
    {"role": "assistant", "content": "Say two.", "reasoning_content": "why"},
]
CALLS = [
    TURNS[0],
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "how",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    },
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "Say two.", "reasoning_content": "why"},
]
LAST = "<think>\nwhy\n</think>\n\nSay two.<|im_end|>"
CALL = '<think>\nhow\n</think>\n\n\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(
    ("name", "messages", "trained"),
    [
        # Only what the template writes is trained on: of earlier turns the answer without its thinking.
        ("qwen3", TURNS, ["Say one.<|im_end|>", LAST]),
        ("qwen3", FIELDS, ["Say one.<|im_end|>", LAST]),
        # Thinking since the last question stays, as the model will see it.
        ("qwen3", CALLS, [CALL.replace("\n\n\n<tool", "\n\n<tool"), LAST]),
        # It leaves out the thinking of all turns, also the last.
        ("deepseek-r1", TURNS, ["\n\nSay one.<|im_end|>", "\n\nSay two.<|im_end|>"]),
    ],
)
def test_ids_are_those_of_transformers_and_what_is_written_is_trained_on(load, name, messages, trained):
    tokenizer = load("bytes", PUBLISHED[name][0].replace("<｜end▁of▁sentence｜>", "<|im_end|>"))
    encoder = encoder_of(tokenizer)
    ((ids, mask),) = rows(encode(encoder, chats(messages)))
    text = tokenizer.hf.apply_chat_template(messages, chat_template=tokenizer.chat_template, tokenize=False)
    assert ids == tokenizer.hf(text, add_special_tokens=False)["input_ids"]
    pieces, previous = [], 0
    for token, is_trained in zip(ids, mask, strict=True):
        if is_trained and not previous:
            pieces.append([])
        if is_trained:
            pieces[-1].append(token)
        previous = is_trained
    assert [tokenizer.hf.decode(piece) for piece in pieces] == trained
    assert encoder.warnings == []
