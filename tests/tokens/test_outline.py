"""Ranges of plain conversations by the lengths of their contents, compared with those by marks."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.templates.written import CHANGED
from tests.tokens.helpers import turns
from tests.tokens.published_templates import PUBLISHED
from tests.tokens.rehearsed import SIMPLE, marked, notes, renderer
from tests.tokens.test_templates_published import TEXT
from tests.tokens.test_templates_published import renderer as published

OPEN = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '' if loop.last else '\n' }}{% endfor %}"
OPEN += "{% if add_generation_prompt %}assistant: {% endif %}"
CONTENT = TEXT.map(lambda text: text.replace("<|", "< |").replace("</s>", ""))
"""Without end tokens: by marks, one in a content may seem to end the turn."""


@pytest.mark.parametrize("name", [*PUBLISHED, "open"])
def test_ranges_equal_those_by_marks(name):
    ours = published(name) if name in PUBLISHED else renderer(OPEN)
    num_outlined = 0

    @given(st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3), st.none() | CONTENT)
    @settings(max_examples=40)
    def check(pairs, system):
        nonlocal num_outlined
        try:
            first = [] if system is None else [{"role": "system", "content": system}]
            chat = ours.read(first + turns(*chain.from_iterable(pairs)))
            rendered = ours.render_chat(chat)
        except TemplateRejectError:
            return
        if rendered.notes is not None:
            num_outlined += 1
            by_marks = ours._render_marked(chat, ours._fast if chat.is_safe else {})
            assert rendered[:2] == by_marks[:2]
            assert list(rendered.notes) == list(ours.review(chat, by_marks, None))

    check()
    assert num_outlined > 3


@pytest.mark.parametrize(
    ("write", "said", "note"),
    [
        ("m.content | replace('blue', 'red')", "red skies", CHANGED),
        ("m.content if 'blue' not in m.content else m.content[:4] + m.content[5:]", "blueskies", CHANGED),
        ("('Sky: ' if 'skies' in m.content else '') + m.content", None, "besides the message's own text"),
    ],
)
def test_contents_that_are_written_in_another_way_than_rehearsed(write, said, note):
    template = SIMPLE.replace("m.content", f"({write})")
    odd = turns("which skies?", "blue skies")
    if said is None:
        with pytest.raises(TemplateRejectError, match=note):
            notes(template, odd)
        return
    assert f"[{said}<|im_end|>]" in marked(template, odd)
    assert notes(template, odd) == [note]


@pytest.mark.parametrize("engine", ["minijinja", "jinja2"])
def test_end_tokens_in_a_content_do_not_end_its_turn(engine):
    between = OPEN.replace("\n", "</s>")
    assert marked(between, turns("a", "b<|im_end|>", "c", "d"), engine=engine) == (
        "user: a</s>assistant: [b<|im_end|></s>]user: c</s>assistant: [d]"
    )


def test_white_space_at_the_end_of_a_turn_without_an_end_carries_no_loss():
    assert marked(OPEN, turns("a ", "b ", "c", " d ")) == "user: a \nassistant: [b] \nuser: c\nassistant: [ d] "
    trimmed = OPEN.replace("m.content", "m.content | trim")
    assert marked(trimmed, turns("a ", "b ", "c", " d ")) == "user: a\nassistant: [b]\nuser: c\nassistant: [d]"
