"""Turns whose parts are not certain, which are rejected."""

import pytest

from packer_cli.tokens.templates.conversation import TemplateRejectError
from tests.tokens.loss_parts.chats import assistant, call, selected
from tests.tokens.published_templates import PUBLISHED, QWEN3, QWEN25

CHATML = PUBLISHED["chatml"][0]
UNKNOWN = CHATML.replace("message['content']", "(message.reasoning_content or '') + message['content']")


WITHOUT_TAGS = (
    "the chat template writes the reasoning of message 2 without tags that hbpack knows, which are <think> and "
    "</think>, [THINK] and [/THINK], <seed:think> and </seed:think>, <|channel|>analysis<|message|> and <|end|>"
)


@pytest.mark.parametrize(
    ("template", "messages", "loss_on", "reason"),
    [
        (
            CHATML,
            assistant(content="Write <think> first."),
            "no-reasoning",
            "message 2 has <think> in the middle, so what is reasoning is not certain",
        ),
        (
            CHATML,
            assistant(content="<think>never closed"),
            "reasoning",
            "message 2 has <think> without </think>, so what is reasoning is not certain",
        ),
        (
            QWEN3,
            assistant(content="x", reasoning_content="the tag </think> ends it"),
            "reasoning",
            "message 2 has </think> more than once, so what is reasoning is not certain",
        ),
        (
            QWEN25,
            assistant(content="<think>", tool_calls=[call("f", x="</think>")]),
            "no-reasoning",
            "the chat template writes something between <think> and </think> that is not the reasoning of message 2",
        ),
        (
            UNKNOWN,
            assistant(content="x", reasoning_content="hidden steps"),
            "no-reasoning",
            WITHOUT_TAGS,
        ),
        (
            CHATML,
            assistant(content="<think>one</think>x", reasoning_content="two"),
            "reasoning",
            "the chat template writes something between <think> and </think> that is not the reasoning of message 2",
        ),
        (
            CHATML,
            assistant(content="x", tool_calls=[call("weather")]),
            "tool-calls",
            "the chat template does not write the tool calls of message 2",
        ),
    ],
)
def test_what_is_not_certain_is_rejected(template, messages, loss_on, reason):
    with pytest.raises(TemplateRejectError) as error:
        selected(template, messages, loss_on)
    assert str(error.value) == reason
    assert selected(template, messages, "completion")
