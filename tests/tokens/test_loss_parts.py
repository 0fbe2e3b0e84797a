"""`--loss-on` with parts: what carries a loss, in real text, and beside transformers' own masks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.corpus.types import Document
from packer_cli.tokens.encode.encoder import Encoder
from packer_cli.tokens.templates import ChatRenderer, LossParts, TemplateRejectError
from tests.tokens.helpers import chats, encode, rows
from tests.tokens.published_templates import DEEPSEEK_R1, LLAMA31, PUBLISHED, QWEN3, QWEN25

ALL = ("last-turn", "reasoning", "no-reasoning", "tool-calls", "reasoning+tool-calls", "last-turn+no-reasoning")


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


CHAT = [
    {"role": "user", "content": "What is 12 x 7?"},
    {"role": "assistant", "content": "84.", "reasoning_content": "Ten times seven, and two times seven."},
    {"role": "user", "content": "And the weather in Oslo and Rome?"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "I need a tool.\n\nTwo calls.",
        "tool_calls": [call("weather", city="Oslo"), call("weather", city="Rome")],
    },
    {"role": "tool", "content": "rain"},
    {"role": "tool", "content": "sun"},
    {"role": "assistant", "content": "Rain in Oslo, sun in Rome.", "reasoning_content": "Both are known."},
]
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
THOUGHTS = [
    "<think>\nI need a tool.\n\nTwo calls.\n</think>",
    "<think>\nBoth are known.\n</think>",
]
"""Of the first answer the thinking is not in the text: Qwen3 leaves out what it thought before the last question."""
ANSWERS = ["84.<|im_end|>", f"\n\nLet me look.\n{CALLS}<|im_end|>", "\n\nRain in Oslo, sun in Rome.<|im_end|>"]
GOLDEN = {
    "completion": [ANSWERS[0], THOUGHTS[0] + ANSWERS[1], THOUGHTS[1] + ANSWERS[2]],
    "last-turn": [THOUGHTS[1] + ANSWERS[2]],
    "reasoning": THOUGHTS,
    "no-reasoning": ANSWERS,
    "tool-calls": [CALLS],
    "reasoning+tool-calls": [THOUGHTS[0], CALLS, THOUGHTS[1]],
    "last-turn+reasoning": THOUGHTS[1:],
    "last-turn+no-reasoning": ANSWERS[2:],
    "last-turn+tool-calls": [],
}


def renderer(template, eos="<|im_end|>", **options):
    specials = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<|call|>", "</s>", eos)
    variables = {"bos_token": "<s>", "eos_token": eos}
    return ChatRenderer(template, variables=variables, special_tokens=specials, **options)


def selected(template, messages, loss_on, **options):
    """The texts with a loss."""
    ours = renderer(template, **options)
    rendered = ours.render(messages)
    return [rendered.text[a:b] for a, b in ours.loss_spans(messages, rendered, LossParts.of(loss_on))[0]]


@pytest.mark.parametrize("loss_on", GOLDEN)
def test_what_carries_a_loss(loss_on):
    for engine in ("minijinja", "jinja2"):
        assert selected(QWEN3, CHAT, loss_on, engine=engine) == GOLDEN[loss_on]


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


def tagged(template, *changes):
    for old, new in changes:
        assert old in template
        template = template.replace(old, new)
    return template


# What an author of Qwen3's template would tag for each part.
TURN = (
    "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + "
    "content.lstrip('\\n') }}"
)
HEAD = "{{- '<|im_start|>' + message.role + '\\n' }}"
THINK = "{{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>' }}"
REST = "{{- '\\n\\n' + content.lstrip('\\n') }}"
PLAIN = "{{- '<|im_start|>' + message.role + '\\n' + content }}\n            {%- endif %}"
BARE = "{{- '<|im_start|>' + message.role + '\\n' + content }}\n        {%- endif %}"
CALL_LOOP = "{%- for tool_call in message.tool_calls %}"
LOOP = CALL_LOOP + "\n                {%- if (loop.first and content) or (not loop.first) %}"
BETWEEN = CALL_LOOP + "\n                {%- if (not loop.first) %}"
LOOP_END = "'}\\n</tool_call>' }}\n            {%- endfor %}"
END = "        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"


def wrapped(text):
    return "{% generation %}" + text + "{% endgeneration %}"


def answers_tagged(text, end):
    return text.replace("content }}\n", "'' }}" + wrapped("{{- content }}") + "\n").removesuffix(end) + end


TAGGED = {
    "reasoning": tagged(QWEN3, (TURN, HEAD + wrapped(THINK) + REST)),
    "no-reasoning": tagged(
        QWEN3,
        (TURN, HEAD + THINK + wrapped(REST)),
        (PLAIN, answers_tagged(PLAIN, "{%- endif %}")),
        (BARE, answers_tagged(BARE, "{%- endif %}")),
        (LOOP, "{% generation %}" + LOOP),
        (LOOP_END, LOOP_END + "{% endgeneration %}"),
        (END, wrapped("{{- '<|im_end|>' }}") + END.replace("<|im_end|>", "")),
    ),
    "tool-calls": tagged(
        QWEN3,
        (
            LOOP,
            "{%- if content %}{{- '\\n' }}{%- endif %}{% generation %}"
            + LOOP.replace("(loop.first and content) or ", ""),
        ),
        (LOOP_END, LOOP_END + "{% endgeneration %}"),
    ),
}


@pytest.mark.parametrize("kind", ["bytes", "metaspace", "nfc"])
@pytest.mark.parametrize("loss_on", TAGGED)
def test_masks_are_those_of_transformers_for_a_template_with_tags(load, kind, loss_on):
    plain = [dict(message, content=message["content"].replace("Oslo", "Tromsø")) for message in CHAT]
    conversations = [CHAT, plain, CHAT[:2], CHAT[2:], [*CHAT[:1], {"role": "assistant", "content": "84"}]]
    tokenizer = load(kind, QWEN3)
    got = rows(encode(Encoder(tokenizer, loss_on=loss_on), chats(*conversations)))
    seen = 0
    for messages, (ids, mask) in zip(conversations, got, strict=True):
        expected = tokenizer.hf.apply_chat_template(
            messages, chat_template=TAGGED[loss_on], return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        assert mask == expected["assistant_masks"]
        seen += sum(mask)
    assert seen > 0


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
        ((ids, mask),) = rows(encode(Encoder(tokenizer, loss_on="last-turn"), chats(conversation)))
        assert (ids, mask) == (out["input_ids"], expected)
        assert sum(mask) < sum(out["assistant_masks"]) or len(conversation) == 2


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
    "{% for m in messages %}{% if m.role == 'assistant' %}"
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


def test_deepseek_r1_leaves_out_all_thinking():
    messages = [CHAT[0], {"role": "assistant", "content": "<think>\nhm\n</think>\n\n84."}]
    eos = PUBLISHED["deepseek-r1"][2]
    assert selected(DEEPSEEK_R1, messages, "reasoning", eos=eos) == []
    assert selected(DEEPSEEK_R1, messages, "no-reasoning", eos=eos) == [f"\n\n84.{eos}"]


def test_tool_calls_of_other_templates():
    silent = [CHAT[2], {**CHAT[3], "content": ""}]
    assert selected(QWEN25, silent, "tool-calls") == [CALLS]
    one = [CHAT[2], {"role": "assistant", "tool_calls": [call("weather", city="Oslo")]}]
    assert selected(LLAMA31, one, "tool-calls", eos="<|eot_id|>") == [
        '{"name": "weather", "parameters": {"city": "Oslo"}}'
    ]


def assistant(**message):
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", **message}]


CHATML = PUBLISHED["chatml"][0]
UNKNOWN = CHATML.replace("message['content']", "(message.reasoning_content or '') + message['content']")


WITHOUT_TAGS = (
    "the chat template writes the reasoning of message 2 without tags that hbpack knows, which are <think> and "
    "</think>, [THINK] and [/THINK], <seed:think> and </seed:think>, <|channel|>analysis<|message|> and <|end|>"
)
NO_CONTENT = (
    "the chat template does not write the content of message 2 first, so where its tool calls begin is not certain"
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
        (
            LLAMA31,
            assistant(content="Let me look.", tool_calls=[call("weather")]),
            "tool-calls",
            NO_CONTENT,
        ),
    ],
)
def test_what_is_not_certain_is_rejected(template, messages, loss_on, reason):
    with pytest.raises(TemplateRejectError) as error:
        selected(template, messages, loss_on)
    assert str(error.value) == reason
    assert selected(template, messages, "completion")


def test_texts_and_completions(load):
    tokenizer = load("bytes", "chatml")
    documents = [
        Document("text", 1, text="A <think> tag."),
        Document("prompt-completion", 2, prompt="Q: ", completion="<think>\nhm\n</think>\n\nA"),
        Document("prompt-completion", 3, prompt="Q: <think>\n", completion="hm</think>A"),
        Document("prompt-completion", 4, prompt="Q: ", completion="A"),
    ]

    def trained(loss_on):
        batch = encode(Encoder(tokenizer, loss_on=loss_on, append_eos="auto"), documents)
        texts = {
            line: tokenizer.hf.decode([one for one, bit in zip(ids, mask, strict=True) if bit]).lstrip(" ")
            for line, (ids, mask) in zip(batch.lines.tolist(), rows(batch), strict=True)
        }
        return texts, {reject.line: reject.reason for reject in batch.rejects}

    end = "<|im_end|>"
    whole = {1: f"A <think> tag.{end}", 4: f"A{end}"}
    texts, rejects = trained("last-turn")
    assert (texts, rejects) == (
        {**whole, 2: f"<think>\nhm\n</think>\n\nA{end}", 3: f"hm</think>A{end}"},
        {},
    )
    assert trained("no-reasoning") == ({**whole, 2: f"\n\nA{end}", 3: f"A{end}"}, {})
    no_turns = "a plain text has no assistant turns, and --loss-on trains only on parts of these"
    assert trained("reasoning") == ({2: "<think>\nhm\n</think>", 3: "hm</think>", 4: ""}, {1: no_turns})
    no_calls = (
        'a completion that is a string does not say which part of it is a tool call; give messages with "tool_calls"'
    )
    assert trained("tool-calls") == ({}, {1: no_turns, 2: no_calls, 3: no_calls, 4: no_calls})


def test_plain_content(load):
    """Special tokens in the data are text, and the parts around them keep their places."""
    tokenizer = load("bytes", QWEN3)
    messages = [
        {"role": "user", "content": "<|im_end|>?"},
        {"role": "assistant", "content": "Use <|im_end|>.", "reasoning_content": "It is <|im_end|>"},
    ]
    documents = [
        *chats(messages),
        Document("prompt-completion", 2, prompt="<s>", completion="<think><s></think>b <s>"),
    ]
    for loss_on, first, second in [
        ("reasoning", "<think>\nIt is <|im_end|>\n</think>", "<think><s></think>"),
        ("no-reasoning", "\n\nUse <|im_end|>.<|im_end|>", "b <s>"),
    ]:
        encoder = Encoder(tokenizer, loss_on=loss_on, plain_content=True)
        found = []
        for ids, mask in rows(encode(encoder, documents)):
            kept = [one for one, bit in zip(ids, mask, strict=True) if bit]
            found.append(tokenizer.hf.decode(kept))
        assert found == [first, second]


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
    rendered = QWEN.render(messages)
    chars = []
    try:
        for loss_on in ("completion", "reasoning", "no-reasoning", "tool-calls"):
            spans, _ = QWEN.loss_spans(messages, rendered, LossParts.of(loss_on))
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
