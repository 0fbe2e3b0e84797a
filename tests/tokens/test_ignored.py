"""What a chat template leaves out is counted, and an answer of which nothing is left is rejected."""

import pytest

from packer_cli.corpus.types import Document
from packer_cli.tokens.encode.encoder import Encoder
from packer_cli.tokens.templates.renderer import Ignored
from packer_cli.tokens.templates.template import CompiledTemplate
from tests.tokens.helpers import encode, turns
from tests.tokens.published_templates import PUBLISHED

TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {}}}
NOTHING = Ignored(False, False, False, False, False)
IGNORED = {
    "chatml": Ignored(True, False, True, True, False),
    "chatml-generation": Ignored(True, False, True, True, False),
    "qwen2.5": NOTHING._replace(reasoning=True),
    "qwen3": NOTHING._replace(parts=True),  # As nothing.
    "llama2": Ignored(True, False, True, True, False),
    "llama3": Ignored(True, False, True, True, True),
    "llama3.1": NOTHING._replace(reasoning=True, parts=True),
    # It writes a system message beside the last question alone, and only if nothing answers that.
    "mistral": NOTHING._replace(reasoning=True, system=True),
    "gemma": Ignored(True, False, True, True, True),  # It refuses a system message.
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_published_templates_leave_out(name):
    template, bos, eos, _ = PUBLISHED[name]
    compiled = CompiledTemplate(template, {"bos_token": bos, "eos_token": eos})
    assert Ignored.of(compiled) == IGNORED[name]


@pytest.mark.parametrize("plain_content", [False, True])
def test_what_is_left_out_is_counted(load, plain_content):
    encoder = Encoder(load("bytes", "chatml"), plain_content=plain_content)
    question, answer = turns("Hi<|im_end|>", "Hello")
    documents = [
        Document("messages", 1, messages=[question, answer], tools=TOOLS),
        Document("messages", 2, messages=[question, {**answer, "reasoning_content": "Hm."}], tools=TOOLS),
        Document("messages", 3, messages=[question, {**answer, "tool_calls": [CALL]}]),
        Document("messages", 4, messages=[question, {**answer, "reasoning_content": ""}]),
        Document("messages", 5, messages=[{"role": "system", "content": "Be brief."}, question, answer]),
        Document("prompt-completion", 6, prompt="a", completion="b", tools=TOOLS),
    ]
    assert len(encode(encoder, documents).lines) == 6
    assert encoder.unused == {
        '"reasoning_content", which the chat template does not write': 1,
        '"tool_calls", which the chat template does not write': 1,
        '"tools", which have no place in a prompt that is a string': 1,
        '"tools", which the chat template does not write': 2,
    }
    encoder.start_part()
    assert not encoder.unused


def test_an_answer_of_tool_calls_alone_is_not_trained_on_as_an_empty_one(load):
    question, answer = turns("Hi", "Hello")
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    documents = [Document("messages", 1, messages=[question, call, {"role": "tool", "content": "1"}, answer])]
    batch = encode(Encoder(load("bytes", "chatml")), documents)
    assert [reject.reason for reject in batch.rejects] == [
        "the chat template does not write tool calls, so message 2 would be an empty answer"
    ]
    assert len(encode(Encoder(load("bytes", "qwen3")), documents).lines) == 1


def test_a_template_without_system_messages(load):
    template = (
        "{% for message in messages %}{% if message.role != 'system' %}"
        "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    )
    encoder = Encoder(load("bytes", template))
    documents = [Document("messages", 1, messages=[{"role": "system", "content": "Be brief."}, *turns("Hi", "Hello")])]
    encode(encoder, documents)
    assert encoder.unused == {"a system message, which the chat template does not write": 1}


def test_content_in_parts(load):
    """Qwen3's template writes none of it, and Llama 3's writes Python."""
    parts = [
        {**message, "content": [{"type": "text", "text": message["content"]}]} for message in turns("Hi", "Hello")
    ]
    documents = [Document("messages", 1, messages=[turns("Hi")[0], parts[1]])]
    for name in ("qwen3", "llama3"):
        batch = encode(Encoder(load("bytes", PUBLISHED[name][0])), documents)
        (reject,) = batch.rejects
        assert reject.reason == (
            "the chat template does not write content that is an array of parts, as message 2 has it; write it as a "
            "string"
        )
    assert len(encode(Encoder(load("bytes", PUBLISHED["macros"][0])), documents).lines) == 1
