"""The reasoning of a turn, as other templates than Qwen3's write it."""

import pytest

from tests.tokens.loss_parts.chats import CHAT, call, selected
from tests.tokens.published_templates import DEEPSEEK_R1, PUBLISHED

THOUGHT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."},
]
PROMPTED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' %}{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
"""As of QwQ: the generation prompt opens the thinking, so that the model does not."""
GPT_OSS = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + (m.thinking or m.content) + '<|end|>' }}"
    "{{ '<|start|>assistant to=' + m.tool_calls[0].function.name + '<|message|>{}<|call|>' }}"
    "{% elif m.role == 'assistant' %}"
    "{% if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
MAGISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}{% else %}"
    "{% if m.reasoning_content %}{{ '[THINK]' + m.reasoning_content + '[/THINK]' }}{% endif %}"
    "{{ m.content + eos_token }}{% endif %}{% endfor %}"
)


OPENED = PROMPTED.replace(
    "'<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n'",
    "'<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' if m.reasoning_content else ''",
)
"""The same, but a turn without reasoning has no block."""


@pytest.mark.parametrize("content", ["<table> <b>", "<think", "<thin>", "t", "<"])
def test_an_answer_that_begins_like_the_prompt_is_trained_on_as_a_whole(content):
    assert OPENED != PROMPTED
    messages = [THOUGHT[0], {"role": "assistant", "content": content}]
    assert selected(OPENED, messages, "completion") == [f"{content}<|im_end|>"]
    assert selected(OPENED, THOUGHT, "completion") == ["A greeting.\n</think>\n\nHello.<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "eos", "reasoning", "answer"),
    [
        (PROMPTED, "<|im_end|>", "A greeting.\n</think>", "\n\nHello.<|im_end|>"),
        (
            GPT_OSS,
            "<|return|>",
            "<|channel|>analysis<|message|>A greeting.<|end|>",
            "<|start|>assistant<|channel|>final<|message|>Hello.<|return|>",
        ),
        (MAGISTRAL, "</s>", "[THINK]A greeting.[/THINK]", "Hello.</s>"),
        # The template writes no thinking at all.
        (PUBLISHED["chatml"][0], "<|im_end|>", None, "Hello.<|im_end|>"),
    ],
)
def test_other_ways_to_write_reasoning(template, eos, reasoning, answer):
    assert selected(template, THOUGHT, "reasoning", eos=eos) == ([] if reasoning is None else [reasoning])
    assert selected(template, THOUGHT, "no-reasoning", eos=eos) == [answer]


@pytest.mark.parametrize("said", [{"content": "I look."}, {"content": "", "thinking": "I look."}])
def test_gpt_oss_writes_what_is_said_beside_calls_as_reasoning(said):
    messages = [THOUGHT[0], {"role": "assistant", **said, "tool_calls": [call("f")]}]
    parts = {
        "reasoning": "<|channel|>analysis<|message|>I look.<|end|>",
        "tool-calls": "<|start|>assistant to=f<|message|>{}",
        "no-reasoning": "<|start|>assistant to=f<|message|>{}<|call|>",
    }
    for loss_on, text in parts.items():
        assert selected(GPT_OSS, messages, loss_on, eos="<|return|>") == [text]


def test_deepseek_r1_leaves_out_all_thinking():
    messages = [CHAT[0], {"role": "assistant", "content": "<think>\nhm\n</think>\n\n84."}]
    eos = PUBLISHED["deepseek-r1"][2]
    assert selected(DEEPSEEK_R1, messages, "reasoning", eos=eos) == []
    assert selected(DEEPSEEK_R1, messages, "no-reasoning", eos=eos) == [f"\n\n84.{eos}"]
