"""Templates like those of public tokenizers: the text is transformers', with short ways and without."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from packer_cli.tokens.templates.conversation import TemplateRejectError
from tests.tokens.helpers import way_of
from tests.tokens.published_templates import PUBLISHED


def variables(name):
    return {"bos_token": PUBLISHED[name][1], "eos_token": PUBLISHED[name][2]}


def renderer(name, **kwargs):
    return ChatRenderer(PUBLISHED[name][0], variables=variables(name), special_tokens=PUBLISHED[name][3], **kwargs)


def transformers_text(name, messages, tools=None):
    messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
    return render_jinja_template([messages], tools=tools, chat_template=PUBLISHED[name][0], **variables(name))[0][0]


HOSTILE = [
    "", " ", "\n", " \n\n", "{{ messages }}", "{% for x in y %}", "{#",
    "\x01", "\x02a\x03", "\x1c x \x1d", "\0", "\ufffe",
    "\U000f0000", "<think>\nwhy\n</think>\n\nso", "</think>", "<think>", "<|im_end|>", "</s>",
    "<tool_response>a</tool_response>",
    "\u3000x\u3000", "\x85", "e\u0301", "İ", "ß", "\r\n", "&<>'\"", "\ud7ff", "true", "None", "\\n", "'", '"',
]  # fmt: skip
TEXT = (
    st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
    | st.sampled_from(HOSTILE)
    | st.text("ab \n<>|", max_size=8)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALL = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": TEXT, "arguments": JSON | TEXT})}
)
ANSWER = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT},
    optional={
        "tool_calls": st.none() | st.lists(CALL, max_size=2),
        "reasoning_content": st.none() | TEXT,
        "other": JSON,
    },
)
OTHER = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "user", "system", "tool", "assistant"]), "content": TEXT | st.none() | JSON},
    optional={"name": TEXT, "role2": JSON},
)
TURNS = st.lists(
    st.tuples(st.fixed_dictionaries({"role": st.just("user"), "content": TEXT}), ANSWER), min_size=1, max_size=4
).map(lambda pairs: [message for pair in pairs for message in pair])
SYSTEM = st.lists(st.fixed_dictionaries({"role": st.just("system"), "content": TEXT}), max_size=1)
CHATS = st.builds(lambda system, turns: system + turns, SYSTEM, TURNS) | st.lists(
    OTHER | ANSWER, min_size=1, max_size=6
)
TOOLS = st.none() | st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.dictionaries(st.sampled_from(["name", "description", "return", "parameters"]), JSON),
        }
    ),
    max_size=2,
)


def outcome(render):
    try:
        return render()[:2]
    except TemplateRejectError as error:
        return f"rejected: {error}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_short_ways_change_nothing_in_generated_conversations(name):
    fast, slow = renderer(name), renderer(name, is_exact=True)
    assert way_of(fast) == way_of(slow)
    done = []

    @given(CHATS, TOOLS)
    @settings(max_examples=30)
    def check(messages, tools):
        expected = outcome(lambda: slow.render(messages, tools))
        assert outcome(lambda: fast.render(messages, tools)) == expected
        if not isinstance(expected, str):
            done.append(expected)
            assert expected[0] == transformers_text(name, messages, tools)

    check()
    assert len(done) > 3


@pytest.mark.parametrize("name", PUBLISHED)
def test_ordinary_conversations_have_ranges(name):
    ours = renderer(name)
    messages = [
        {"role": "user", "content": "Was kostet das? 你好 {{ x }}"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nDrei Euro. 🙂"},
        {"role": "user", "content": "  thanks\n"},
        {"role": "assistant", "content": "Bye"},
    ]
    rendered = ours.render(messages)
    assert rendered.text == transformers_text(name, messages)
    said = [rendered.text[start:stop] for start, stop in rendered.spans]
    assert len(said) == 2
    assert "Drei Euro. 🙂" in said[0]
    assert "Bye" in said[1]
    assert not any("thanks" in part or "Was" in part for part in said)
    assert said[1].strip().endswith(PUBLISHED[name][3]) or name == "dated"


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "mistral", "llama3.1"])
def test_tool_calls_have_ranges(name):
    ours = renderer(name)
    arguments = {"b": [1, 2.5, None, True], "a": {"é": "<&>\n"}, "n": -0.001}
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "done"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"z": 1, "a": {}}}}]
    rendered = ours.render(messages, tools)
    assert rendered.text == transformers_text(name, messages, tools)
    assert '"b": [1, 2.5, null, true]' in rendered.text
    assert len(rendered.spans) == 2


def test_lone_surrogates_and_control_characters_stay():
    ours, slow = renderer("qwen3"), renderer("qwen3", is_exact=True)
    for text in ("\ud800", "a\x01b", "\x1c a"):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}]
        assert ours.render(messages)[:2] == slow.render(messages)[:2]
        assert text.strip() in ours.render(messages).text
