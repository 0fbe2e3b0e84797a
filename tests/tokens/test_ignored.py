"""What a chat template leaves out is counted, and an answer of which nothing is left is rejected."""

import pytest

from packer_cli.corpus.types import Document
from tests.tokens.helpers import encode, encoder_of, rows, turns
from tests.tokens.published_templates import PUBLISHED

TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {}}}
NO_CALLS = (
    "the chat template does not write the tool calls of message 2, which should carry a loss; remove it, give the "
    "message a weight of 0, or choose a template that writes it"
)
TOOL = {"role": "tool", "content": "1"}
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION, ANSWER = turns("Hi", "Hello")
ASKED = {
    "tools": [QUESTION, ANSWER],
    "system": [SYSTEM, QUESTION, ANSWER],
    "reasoning": [QUESTION, {**ANSWER, "reasoning_content": "Hm."}],
    "calls": [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
    "beside": [QUESTION, {**ANSWER, "tool_calls": [CALL]}],
    "parts": [QUESTION, {"role": "assistant", "content": [{"type": "text", "text": text} for text in ("a", "b")]}],
}
LEAVES_OUT = {
    "chatml": "tools reasoning calls beside parts",
    "chatml-generation": "tools reasoning calls beside parts",
    "qwen2.5": "reasoning parts",
    "qwen3": "parts",
    "llama2": "tools reasoning calls beside parts",
    "llama3": "tools reasoning calls beside parts",
    "llama3.1": "reasoning beside parts",
    # It writes a system message beside the last question alone, and only if nothing answers that.
    "mistral": "reasoning system beside parts",
    "gemma": "tools system reasoning calls beside parts",  # It refuses a system message.
}


@pytest.mark.parametrize("name", LEAVES_OUT)
def test_what_published_templates_leave_out(load, name):
    template, *_ = PUBLISHED[name]
    found = []
    for what, messages in ASKED.items():
        encoder = encoder_of(load("bytes", template))
        document = Document("messages", 1, messages=messages, tools=TOOLS if what == "tools" else None)
        batch = encode(encoder, [document])
        if batch.rejects or any("does not write" in note for note in encoder.unused):
            found.append(what)
    assert sorted(found) == sorted(LEAVES_OUT[name].split())


@pytest.mark.parametrize("plain_content", [False, True])
def test_what_is_left_out_is_counted(load, plain_content):
    encoder = encoder_of(load("bytes", "chatml"), plain_content=plain_content)
    question, answer = turns("Hi<|im_end|>", "Hello")
    documents = [
        Document("messages", 1, messages=[question, answer], tools=TOOLS),
        Document("messages", 2, messages=[question, {**answer, "reasoning_content": "Hm."}], tools=TOOLS),
        Document("messages", 3, messages=[question, {**answer, "tool_calls": [CALL]}]),
        Document("messages", 4, messages=[question, {**answer, "reasoning_content": ""}]),
        Document("messages", 5, messages=[{"role": "system", "content": "Be brief."}, question, answer]),
        Document("prompt-completion", 6, prompt="a", completion="b", tools=TOOLS),
    ]
    batch = encode(encoder, documents)
    assert len(batch.lines) == 5
    assert [(reject.line, reject.reason) for reject in batch.rejects] == [(3, NO_CALLS)]
    unused = {note: count for note, count in encoder.unused.items() if "that ends a turn" not in note}
    assert unused == {
        "reasoning, which the chat template does not write": 1,
        '"tools", which have no place in a prompt that is a string': 1,
        '"tools", which the chat template does not write': 2,
    }
    encoder.start_part()
    assert not encoder.unused


def test_an_answer_of_tool_calls_alone_is_not_trained_on_as_an_empty_one(load):
    question, answer = turns("Hi", "Hello")
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    documents = [Document("messages", 1, messages=[question, call, {"role": "tool", "content": "1"}, answer])]
    batch = encode(encoder_of(load("bytes", "chatml")), documents)
    assert [reject.reason for reject in batch.rejects] == [NO_CALLS]
    assert len(encode(encoder_of(load("bytes", "qwen3")), documents).lines) == 1


def test_a_template_without_system_messages(load):
    template = (
        "{% for message in messages %}{% if message.role != 'system' %}"
        "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    )
    documents = [Document("messages", 1, messages=[SYSTEM, *turns("Hi", "Hello")])]
    (reject,) = encode(encoder_of(load("bytes", template)), documents).rejects
    assert reject.reason == (
        "the chat template does not write message 1, of role system, in such a conversation; remove it, give it "
        "another role, or choose a template that writes it"
    )


def test_content_in_parts(load):
    """Qwen3's template writes none of it, and Llama 3's writes Python: one part is a string, two have two readings."""
    hello = [{"type": "text", "text": "Hello"}]
    for name in ("qwen3", "llama3"):
        tokenizer = load("bytes", PUBLISHED[name][0])
        as_text, *both = (
            encode(
                encoder_of(tokenizer), [Document("messages", 1, messages=[QUESTION, {**ANSWER, "content": content}])]
            )
            for content in ("Hello", hello, [*hello, *hello])
        )
        assert rows(both[0]) == rows(as_text)
        (reject,) = both[1].rejects
        assert "parts; write it as a string" in reject.reason or "of message 2" in reject.reason
    documents = [Document("messages", 1, messages=[QUESTION, {**ANSWER, "content": [*hello, *hello]}])]
    assert len(encode(encoder_of(load("bytes", PUBLISHED["macros"][0])), documents).lines) == 1
