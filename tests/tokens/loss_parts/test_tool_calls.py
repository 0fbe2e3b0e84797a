"""The tool calls of a turn, as other templates than Qwen3's write them."""

import pytest

from packer_cli.tokens.templates.conversation import TemplateRejectError
from tests.tokens.loss_parts.chats import CALLS, CHAT, assistant, call, selected
from tests.tokens.published_templates import LLAMA31, MISTRAL, QWEN3, QWEN25


def test_tool_calls_of_other_templates():
    silent = [CHAT[2], {**CHAT[3], "content": ""}]
    assert selected(QWEN25, silent, "tool-calls") == [CALLS]
    one = [CHAT[2], {"role": "assistant", "tool_calls": [call("weather", city="Oslo")]}]
    assert selected(LLAMA31, one, "tool-calls", eos="<|eot_id|>") == [
        '{"name": "weather", "parameters": {"city": "Oslo"}}'
    ]


LLAMA_CALL = '{"name": "weather", "parameters": {"city": "Oslo"}}'


@pytest.mark.parametrize(
    "content",
    [
        "Let me look.",
        "{",  # As the calls begin,
        LLAMA_CALL,  # and what they are.
        "weather",
        " \n",
        "<think>\nhm\n</think>\n\nLet me look.",
        [{"type": "text", "text": "Let me "}, {"type": "text", "text": "look."}],
    ],
)
def test_templates_that_leave_out_the_content_beside_calls(content):
    messages = [*assistant(content=content, tool_calls=[call("weather", city="Oslo")]), *CHAT[4:5], CHAT[6]]
    messages[-1] = {"role": "assistant", "content": "{"}
    assert selected(LLAMA31, messages, "tool-calls", eos="<|eot_id|>") == [LLAMA_CALL]
    assert selected(LLAMA31, messages, "last-turn", eos="<|eot_id|>") == ["{<|eot_id|>"]
    mistral = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]'
    assert selected(MISTRAL, messages, "tool-calls", eos="</s>") == [mistral]
    assert selected(MISTRAL, messages[:-1], "last-turn+tool-calls", eos="</s>") == [mistral]
    assert selected(MISTRAL, messages, "completion", eos="</s>") == [f"{mistral}</s>", " {</s>"]


def test_the_content_that_is_left_out_is_found_beside_reasoning_in_it():
    """Other content before the reasoning would change nothing of what Qwen3's template writes."""
    messages = assistant(content="<think>hm</think>Let me look.", tool_calls=[call("weather", city="Oslo")])
    assert selected(QWEN3, messages, "tool-calls") == [CALLS.partition("\n<tool_call>\n{")[0]]


SOMETIMES = MISTRAL.replace('{{- "[TOOL_CALLS] [" }}', '{{- message.content if loop.last }}{{- "[TOOL_CALLS] [" }}')
AFTER = MISTRAL.replace('{{- "}]" + eos_token }}', '{{- "}]" + message.content + eos_token }}')


@pytest.mark.parametrize("template", [SOMETIMES, AFTER])
def test_content_that_is_not_always_first_or_left_out_is_rejected(template):
    assert template != MISTRAL
    one = assistant(content="Let me look.", tool_calls=[call("weather", city="Oslo")])
    with pytest.raises(TemplateRejectError) as error:
        selected(template, [*one, *one], "tool-calls", eos="</s>")
    assert str(error.value) == (
        "the chat template does not write the content of message 2 first, so where its tool calls begin is not certain"
    )
