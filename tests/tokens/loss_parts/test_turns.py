"""`--loss-on` with parts: what of a turn carries a loss, in real text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.templates.parts import LossParts
from tests.tokens.loss_parts.chats import ANSWERS, CHAT, GOLDEN, THOUGHTS, call, renderer, selected
from tests.tokens.published_templates import QWEN3


@pytest.mark.parametrize("loss_on", GOLDEN)
def test_what_carries_a_loss(loss_on):
    for is_exact in (False, True):
        assert selected(QWEN3, CHAT, loss_on, is_exact=is_exact) == GOLDEN[loss_on]


def test_thinking_in_the_content_is_the_same():
    inline = [
        {**message, "content": f"<think>\n{message['reasoning_content']}\n</think>\n\n{message['content']}"}
        if message["role"] == "assistant"
        else message
        for message in CHAT
    ]
    for message in inline:
        message.pop("reasoning_content", None)
    for loss_on, expected in GOLDEN.items():
        assert selected(QWEN3, inline, loss_on) == expected


def test_parts_of_a_template_with_generation_tags(templates):
    messages = CHAT[2:]
    found = {loss_on: selected(templates["qwen3-generation"], messages, loss_on) for loss_on in GOLDEN}
    call = '\n<tool_call>\nweather{"city": "%s"}\n</tool_call>'
    calls = (call % "Oslo" + call % "Rome").lstrip("\n")
    answers = [f"\n\nLet me look.\n{calls}<|im_end|>", ANSWERS[2]]
    assert found["completion"] == [THOUGHTS[0] + answers[0], THOUGHTS[1] + answers[1]]
    assert found["last-turn"] == [THOUGHTS[1] + answers[1]]
    assert found["reasoning"] == THOUGHTS
    assert found["no-reasoning"] == answers
    assert found["tool-calls"] == [calls]


TEXT = st.text("ab <>/\n", max_size=8) | st.sampled_from(["<think>", "</think>", "<tool_call>", "so", "É 你"])


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": TEXT},
            optional={
                "reasoning_content": TEXT,
                "tool_calls": st.lists(
                    st.builds(lambda name: call(name, x=1), st.sampled_from(["f", "so"])), max_size=2
                ),
            },
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=60)
def test_parts_make_up_the_turns(answers):
    """Reasoning and the rest are the whole turn, each char once; or the conversation is rejected."""
    messages = [message for answer in answers for message in ({"role": "user", "content": "go"}, answer)]
    chat = QWEN.read(messages)
    rendered = QWEN.render_chat(chat)
    chars = []
    try:
        for loss_on in ("completion", "reasoning", "no-reasoning", "tool-calls"):
            spans, _ = QWEN.loss_spans(chat, rendered, LossParts.of(loss_on))
            assert spans == sorted(spans)
            chars.append([place for start, stop in spans for place in range(start, stop)])
    except TemplateRejectError:
        return
    whole, reasoning, rest, calls = chars
    assert sorted(reasoning + rest) == whole
    assert set(calls) <= set(rest)
    called = "".join(rendered.text[place] for place in calls)
    assert called.count('{"name": ') == sum(len(answer.get("tool_calls", [])) for answer in answers)
    thoughts = [
        answer["reasoning_content"].strip() for answer in answers if answer.get("reasoning_content", "").strip()
    ]
    written = "".join(rendered.text[place] for place in reasoning)
    assert not thoughts or len(answers) > 1 or thoughts[0] in written


QWEN = renderer(QWEN3)
