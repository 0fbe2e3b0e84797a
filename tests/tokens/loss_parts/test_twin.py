"""Random chats: what carries a loss is what transformers marks for templates with tags around each part."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from packer_cli.tokens.templates.parts import LossParts
from tests.tokens.loss_parts.chats import call, renderer
from tests.tokens.loss_parts.tagged import LLAMA, TAGGED
from tests.tokens.published_templates import MISTRAL, QWEN3

TEMPLATES = {"qwen3": QWEN3, "llama3.1": LLAMA, "mistral": MISTRAL}
VARIABLES = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
PARTS = (
    "completion", "reasoning", "no-reasoning", "tool-calls", "reasoning+tool-calls", "last-turn",
    "last-turn+reasoning", "last-turn+no-reasoning", "last-turn+tool-calls", "last-turn+reasoning+tool-calls",
)  # fmt: skip
TEXT = st.text('ab {"<>/\n', max_size=6) | st.sampled_from(["", " ", "so", "f", "{", '{"name": "f"', "[", "Tromsø 你"])
CALLS = st.lists(st.builds(lambda name, text: call(name, x=text), st.sampled_from(["f", "so"]), TEXT), max_size=2)
ANSWER = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT}, optional={"reasoning_content": TEXT, "tool_calls": CALLS}
)
TOOL = st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT})
USER = st.fixed_dictionaries({"role": st.just("user"), "content": TEXT})
CHATS = st.lists(
    st.tuples(USER, st.lists(st.tuples(ANSWER, st.lists(TOOL, max_size=1)), max_size=2)), min_size=1, max_size=3
)


def flat(rounds, *, most_calls):
    messages = []
    for user, answers in rounds:
        messages.append(user)
        for answer, tools in answers:
            # An empty list of calls is none, but some templates write its brackets.
            calls = answer.get("tool_calls", [])[:most_calls]
            answer = {key: value for key, value in answer.items() if key != "tool_calls"}
            messages += [{**answer, "tool_calls": calls} if calls else answer, *tools]
    return messages


def marked(name, messages, part):
    """The text, and the ranges inside the tags."""
    template = TAGGED[name][part]
    if template is None:
        return None, []
    (text,), (spans,) = render_jinja_template(
        [messages], chat_template=template, return_assistant_tokens_mask=True, **VARIABLES
    )
    return text, spans


def chars_of(spans):
    return {place for start, stop in spans for place in range(start, stop)}


def expected(name, ranges, loss_on):
    names = set(loss_on.split("+"))
    parts = {part: chars_of(spans) for part, spans in ranges.items()}
    whole = parts["reasoning"] | parts["no-reasoning"]
    chosen = names - {"last-turn"} or {"completion"}
    chars = whole if chosen == {"completion"} else set().union(*(parts[each] for each in chosen))
    if "last-turn" in names:
        # Qwen3 has several tags in a turn, but a header before each; Mistral has no header, but one tag in a turn.
        starts = [start for start, _ in ranges["reasoning"] + ranges["no-reasoning"]]
        first = max((start for start in starts if name == "mistral" or start - 1 not in whole), default=0)
        chars = {place for place in chars if place >= first}
    return chars


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_parts_of_random_chats(name):
    ours = renderer(TEMPLATES[name])
    seen = dict.fromkeys(PARTS, 0)

    @given(CHATS)
    @settings(max_examples=60)
    def check(rounds):
        messages = flat(rounds, most_calls=1 if name == "llama3.1" else 2)
        chat = ours.read(messages)
        rendered = ours.render_chat(chat)
        ranges = {}
        for part in TAGGED[name]:
            text, ranges[part] = marked(name, chat.messages, part)
            assert text in (None, rendered.text)
        for loss_on in PARTS:
            spans, _ = ours.loss_spans(chat, rendered, LossParts.of(loss_on))
            assert spans == sorted(spans)
            found = [place for start, stop in spans for place in range(start, stop)]
            assert len(found) == len(set(found))
            assert set(found) == expected(name, ranges, loss_on), loss_on
            seen[loss_on] += bool(found)

    check()
    assert all(count > 3 for loss_on, count in seen.items() if "reasoning" not in loss_on or name == "qwen3")
