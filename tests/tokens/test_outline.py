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
CONTENT = TEXT.map(lambda text: text.replace("<|", "< |").replace("</s>", "") or "\u00a0so\n")
"""Contents without end tokens: by marks, one of these may seem to end the turn."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_ranges_equal_those_by_marks(name):
    ours = published(name, date="2024-05-06")
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
            by_marks = ours._render_marked(chat)
            assert rendered[:2] == by_marks[:2]
            assert list(rendered.notes) == list(ours.review(chat, by_marks, None))

    check()
    assert num_outlined


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


@pytest.mark.parametrize("is_exact", [False, True])
def test_end_tokens_in_a_content_do_not_end_its_turn(is_exact):
    between = OPEN.replace("\n", "</s>").replace("{% endfor %}", "{% endfor %}</s>")
    assert marked(between, turns("a", "b<|im_end|>", "c ", " d "), is_exact=is_exact) == (
        "user: a</s>assistant: [b<|im_end|></s>]user: c </s>assistant: [ d </s>]"
    )


TAGS = "{% generation %}{{ m.content }}</s>{% endgeneration %}"
SAID = "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' ANSWER %}TAGS{% else %}{{ m.content }}</s>"
SAID += "{% endif %}{% endfor %}"


@pytest.mark.parametrize("is_exact", [False, True])
def test_tags_of_a_template_may_depend_on_the_content(is_exact):
    template = SAID.replace("ANSWER", "and 'cannot' not in m.content").replace("TAGS", TAGS)
    assert marked(template, turns("a", "I cannot", "c", "fine"), is_exact=is_exact) == (
        "user: a</s>assistant: I cannot</s>user: c</s>assistant: [fine</s>]"
    )
    parts = "{% if 'FINAL:' in m.content %}{{ m.content.split('FINAL:')[0] }}FINAL:{% generation %}"
    parts += "{{ m.content.split('FINAL:')[1] }}</s>{% endgeneration %}{% else %}" + TAGS + "{% endif %}"
    template = SAID.replace("ANSWER", "").replace("TAGS", parts)
    assert marked(template, turns("a", "b"), is_exact=is_exact).endswith("assistant: [b</s>]")
    with pytest.raises(TemplateRejectError):
        notes(template, turns("a", "why FINAL:b"), is_exact=is_exact)


@pytest.mark.parametrize("is_exact", [False, True])
def test_tags_that_leave_out_the_end_of_a_turn_keep_white_space(is_exact):
    outside = SAID.replace("ANSWER", "").replace("TAGS", "{% generation %}{{ m.content }}{% endgeneration %}</s>")
    assert marked(outside, turns("a", "b\n"), is_exact=is_exact) == "user: a</s>assistant: [b\n]</s>"


@pytest.mark.parametrize("is_exact", [False, True])
def test_an_answer_that_only_some_conversations_have_is_not_lost(is_exact):
    template = "{{ messages[0].content }}</s>{% if messages[1].content %}so: {{ messages[1].content }}</s>{% endif %}"
    with pytest.raises(TemplateRejectError):
        notes(template, turns("a", " "), is_exact=is_exact)


def test_white_space_at_the_end_of_a_turn_without_an_end_carries_no_loss():
    assert marked(OPEN, turns("a ", "b ", "c", " d ")) == "user: a \nassistant: [b] \nuser: c\nassistant: [ d] "
    trimmed = OPEN.replace("m.content", "m.content | trim")
    assert marked(trimmed, turns("a ", "b ", "c", " d ")) == "user: a\nassistant: [b]\nuser: c\nassistant: [d]"


CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}BODY{{ '<|im_end|>\n' }}{% endfor %}"
CHATML += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
LONG = "x" * 200


@pytest.mark.parametrize(
    "body",
    [
        "{% if m.content|length|int > 100 %}LONG{% endif %}{{ m.content }}",
        "{% if m.content|length is number and m.content|length > 100 %}LONG{% endif %}{{ m.content }}",
        "{% if (m.content|length).real|default(0) > 100 %}LONG{% endif %}{{ m.content }}",
        "{{ ['', 'one'][m.content|length] }}{{ m.content }}",
        "{% if m.content.parts is not defined and 'xxx' in m.content %}ANY{% else %}{{ m.content }}{% endif %}",
        "{{ '{0[100]}'.format(m.content) }}{{ m.content }}",
        "{% autoescape true %}{{ m.content }}{% endautoescape %}",
        "{{ ('> '|safe) + m.content }}",
        "{{ m.content + (' <'|safe) }}",
        "{% if 'x' in m.content %}{{ m.content }}{% else %}{{ m.content }}.{% endif %}",
    ],
)
def test_what_depends_on_a_content_is_as_by_marks(body):
    ours = renderer(CHATML.replace("BODY", body))
    for texts in (("hello", "world"), (LONG, LONG), ("a<b", "c&d>"), ("a", "x"), (" hi ", " ho ")):
        assert_as_by_marks(ours, turns(*texts))


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("{% if 'x' in m.content %}{% generation %}{{ m.content }}.{% endgeneration %}{% endif %}", ("a", "world")),
        ("{% generation %}{{ m.content }}</s>\n{% endgeneration %}", ("a", "b", " c", "d")),
        ("{% generation %}{{ m.content }}</s>\n{% endgeneration %}", ("a", "b", "c", "d")),
    ],
)  # fmt: skip
def test_ranges_that_depend_on_a_content_are_as_by_marks(answer, texts):
    said = "{% for m in messages %}{% if m.role == 'assistant' %}" + answer + "{% else %}{{ m.content }}</s>"
    assert_as_by_marks(renderer(said + "{% endif %}{% endfor %}"), turns(*texts))


def test_a_content_that_begins_as_a_header_does_is_as_by_marks():
    ours = renderer(CHATML.replace("BODY", "{{ m.content }}"))
    assert_as_by_marks(ours, turns("a", "<|im_start|>assistant\nb"))


def assert_as_by_marks(ours, messages):
    def outcome(render):
        try:
            chat = ours.read(messages)
            rendered = render(chat)
            return rendered.text, rendered.spans, [*ours.review(chat, rendered, None)]
        except TemplateRejectError as error:
            return str(error)

    assert outcome(ours.render_chat) == outcome(ours._render_marked)
