"""Texts equal transformers'; ranges equal those of the same template with generation tags."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.templates.rounds import MARK, split
from tests.tokens.helpers import way_of

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIALS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|endoftext|>")
MARKS = [f"{MARK}{letter}{depth}" for letter in "AO" for depth in "01"]
GUESSES = ["\x01", *(f"\x01{token}{letter}0" for token in ("", "0123456789abcdef") for letter in "AO")]
NAMES = ["chatml", "llama2", "qwen3", "macro", "loop-controls", "eos-between", "chatml-generation"]


def chat(*contents, system=None):
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)
    ]
    return ([{"role": "system", "content": system}] if system is not None else []) + turns


def reference(template, messages, **kwargs):
    messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
    texts, spans = render_jinja_template([messages], chat_template=template, **VARIABLES, **kwargs)
    return texts[0], spans[0] if spans else []


def renderer(template, **kwargs):
    return ChatRenderer(template, variables=VARIABLES, special_tokens=SPECIALS, **kwargs)


def said(rendered):
    return [rendered.text[start:stop] for start, stop in rendered.spans]


TEXT = st.text(
    alphabet=st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from("\n \t<|>é你🙂{}%")),
    max_size=20,
) | st.sampled_from(
    [
        "",
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<think>\nx\n</think>\n\nyes",
        *GUESSES,
        "\x1c\x1d",
        "STOP\n",
        " \n",
    ]
)
CHATS = st.builds(
    lambda contents, system: chat(*contents, system=system),
    st.lists(TEXT, min_size=1, max_size=6),
    st.none() | TEXT,
)


@pytest.mark.parametrize("name", NAMES)
def test_text_equals_transformers_on_generated_chats(templates, name):
    ours = {is_exact: renderer(templates[name], is_exact=is_exact) for is_exact in (False, True)}
    bare = renderer(templates[name], want_spans=False)

    @given(CHATS)
    @settings(max_examples=40)
    def check(messages):
        expected = reference(templates[name], messages)[0]
        assert bare.render(messages).text == expected
        assert ours[False].render(messages)[:2] == ours[True].render(messages)[:2]
        assert ours[False].render(messages).text == expected

    check()


@pytest.mark.parametrize("name", ["chatml", "llama2", "qwen3"])
def test_marks_find_what_generation_tags_mark(templates, name):
    marked, tagged = renderer(templates[name]), renderer(templates[f"{name}-generation"])
    assert (way_of(marked), way_of(tagged)) == ("loops", "tags")

    @given(CHATS)
    @settings(max_examples=150)
    def check(messages):
        ours, expected = marked.render(messages), tagged.render(messages)
        assert ours.text == expected.text
        assert ours.spans == expected.spans
        text, spans = reference(templates[f"{name}-generation"], messages, return_assistant_tokens_mask=True)
        assert (expected.text, expected.spans) == (text, [span for span in spans if span[1] > span[0]])

    check()


@pytest.mark.parametrize("name", ["chatml", "llama2", "loop-controls", "eos-between"])
def test_prefixes_find_what_marks_find(templates, name):
    marked, slow = renderer(templates[name]), renderer(templates[name])
    del slow._ways["loops"]
    assert (way_of(marked), way_of(slow)) == ("loops", None)
    messages = chat("Hi there", "Hello.\n\nGo on?", "yes é", "你好 🙂", "bye", "so long")
    assert slow.render(messages) == marked.render(messages)
    assert len(marked.render(messages).spans) == 3


def test_ranges_are_the_answer_with_its_end_of_turn(templates):
    messages = chat("a", "b\n", "c", "d")
    assert said(renderer(templates["chatml"]).render(messages)) == ["b\n<|im_end|>", "d<|im_end|>"]
    assert said(renderer(templates["macro"]).render(messages)) == ["b\n<|im_end|>", "d<|im_end|>"]
    assert said(renderer(templates["llama2"]).render(messages)) == [" b </s>", " d </s>"]
    # EOS that the head of the next turn, or the end of the template, writes is the answer's as well.
    assert said(renderer(templates["eos-between"]).render(messages)) == [" b\n</s>", " d</s>"]


def test_thinking_of_earlier_turns_is_left_out_and_the_last_is_trained_on(templates):
    messages = chat("a", "<think>\none\n</think>\n\nb", "c", "<think>\ntwo\n</think>\n\nd")
    ours = renderer(templates["qwen3"])
    assert way_of(ours, messages) == "loops"
    assert said(ours.render(messages)) == ["b<|im_end|>", "<think>\ntwo\n</think>\n\nd<|im_end|>"]
    assert ours.mismatch(ours.read(messages)) is None


def test_tool_calls_belong_to_the_assistant(templates):
    call = {"function": {"name": "f", "arguments": {"x": [1, 2.5, None]}}}
    messages = [*chat("a"), {"role": "assistant", "content": None, "tool_calls": [call, call]}]
    ours = renderer(templates["qwen3"]).render(messages)
    assert ours.text == reference(templates["qwen3"], messages)[0]
    assert len(ours.spans) == 1
    assert said(ours)[0].count("<tool_call>") == 2


def test_loops_in_macros_are_not_marked(templates):
    for name in ("chatml", "loop-controls", "eos-between"):
        assert way_of(renderer(templates[name])) == "loops"
    text = (
        "{% macro all(x) %}{% for m in x %}{{ m.role }}: {{ m.content }};{% endfor %}{% endmacro %}{{ all(messages) }}"
    )
    messages = chat("a", "b", "c", "d")
    for changed in (text, text.replace("{{ all(messages) }}", "{% set x = all(messages) %}{{ x | trim }}")):
        for is_exact in (False, True):
            ours = renderer(changed, is_exact=is_exact)
            assert way_of(ours) is None
            assert said(ours.render(messages)) == ["assistant: b;", "assistant: d;"]


def test_tags_in_macros_reject_the_conversation(templates):
    tagged = templates["chatml-generation"].replace("{% for", "{% macro all() %}{% for")
    template = tagged.replace("{% endfor %}", "{% endfor %}{% endmacro %}{{ all() }}")
    reason = r"not certain .*: of the chat template, by its tags {% generation %}, one is in a macro or a block"
    with pytest.raises(TemplateRejectError, match=reason):
        renderer(template).render(chat("a", "b"))


def test_marks_that_change_what_a_template_does_are_not_used():
    # It writes the length of what a loop wrote.
    loop = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
    template = "{% set x %}" + loop + "{% endset %}{{ x }}{{ x | length }}"
    with pytest.raises(TemplateRejectError, match=r"not certain .* by the texts of shorter"):
        renderer(template).render(chat("a", "b"))


RECURSIVE = (
    "{% macro all(i) %}{{ messages[i].role }}:{{ messages[i].content }};"
    "{% if i + 1 < messages | length %}{{ all(i + 1) }}{% endif %}{% endmacro %}"
    "{% if messages %}{{ all(0) }}{% endif %}"
)


def test_slow_way_rejects_what_it_cannot_tell_apart():
    template = RECURSIVE.replace("{{ messages[i].role }}", "{{ messages | length }}{{ messages[i].role }}")
    with pytest.raises(TemplateRejectError, match=r"differently as the conversation goes on.*generation"):
        renderer(template).render(chat("a", "b"))


@pytest.mark.parametrize("text", GUESSES)
def test_content_like_a_mark_stays_text(text):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert way_of(renderer(template)) == "loops"
    assert renderer(template).render(chat(text, text)).text == text * 2


LOOP = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
MEDDLERS = {
    "writes marks": "{% if messages | length > 4 %}FORGED{% endif %}" + LOOP,
    "writes marks between": LOOP.replace("{{ m.content", "{% if loop.index > 4 %}FORGED{% endif %}{{ m.content"),
    "takes marks out": "{% set x %}" + LOOP + "{% endset %}{{ x.split('\x01') | join('') }}",
    "cuts": "{% set x %}" + LOOP + "{% endset %}{{ x[:150] }}",
    "cuts what it begins": "{% set x %}" + LOOP + "{% endset %}{{ x[3:] }}",
    "changes": "{% set x %}" + LOOP + "{% endset %}{{ x | upper }}",
    "counts": "{% set x %}" + LOOP + "{% endset %}{{ x }}{{ x | length if messages | length > 4 }}",
    "repeats": "{% set x %}" + LOOP + "{% endset %}{{ x }}{{ x if messages | length > 4 }}",
}


@pytest.mark.parametrize("name", MEDDLERS)
@pytest.mark.parametrize("forged", GUESSES)
@pytest.mark.parametrize("is_exact", [False, True])
def test_templates_cannot_forge_change_or_cut_marks(name, forged, is_exact):
    """The text is transformers', and each range is an answer, whole, or the conversation is rejected."""
    template = MEDDLERS[name].replace("FORGED", forged)
    messages = chat("a one", "b two", "c three", "d four", "e five", forged)
    ours = renderer(template, is_exact=is_exact)
    try:
        rendered = ours.render(messages)
    except TemplateRejectError:
        return
    whole = render_jinja_template([messages], chat_template=template, **VARIABLES)[0][0]
    assert rendered.text == whole
    kept = forged.replace("\x01", "") if name == "takes marks out" else forged
    for text in said(rendered):
        assert any(answer.lower() in text.lower() for answer in ("b two", "d four", kept))
        assert not any(other in text.lower() for other in ("a one", "c three", "e five"))


def test_template_that_raises_is_a_reject_with_its_words(templates):
    with pytest.raises(TemplateRejectError, match="cannot render this conversation: Roles must alternate"):
        renderer(templates["llama2"]).render([{"role": "assistant", "content": "x"}])
    for bad, words in (([], "is empty"), (["x"], "not an object but str"), ([{"role": "user"}], "cannot render")):
        with pytest.raises(TemplateRejectError, match=words):
            renderer(templates["chatml"]).render(bad)


def test_invalid_template_is_a_tokenizer_error():
    with pytest.raises(TokenizerError) as caught:
        renderer("{% for %}")
    assert str(caught.value) == (
        "the chat template is not valid Jinja (Expected an expression, got 'end of statement block'); give another "
        "with --chat-template FILE"
    )


def test_reasoning_has_all_its_names():
    template = "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.reasoning }};{% endfor %}"
    for key in ("thinking", "reasoning", "reasoning_content"):
        messages = [{"role": "assistant", "content": "x", key: "why", "other": None}]
        assert renderer(template, want_spans=False).render(messages).text == reference(template, messages)[0]


SANDBOX = [
    "{{ messages[0].items() | list | length }}",
    "{{ messages[0].keys() | list }}{{ messages[0].get('role') }}{{ messages[0].nothing }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].content.__class__ }}",
    "{{ messages[0].__class__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ ''.format_map.__self__ }}",
    "{{ 'a{}'.format(messages[0].content) }}{{ 'a{x}'.format_map({'x': 1}) }}",
    "{% set ns = namespace(f='{0.__class__}'.format, n=1) %}{{ ns.n }}{{ ns.f(1) }}",
    "{% set ns = namespace() %}{{ ns.missing }}{% set ns._x = 1 %}",
    "{% set ns = namespace(a='b') %}{{ ns.a.upper() }}{{ ns.__class__ }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.__class__ }}{% endfor %}",
    "{% for m in messages %}{{ m.content.split('a', maxsplit=1) }}{{ m.content.upper().lower().strip() }}{% endfor %}",
    "{{ messages[0].content.encode() }}{{ messages[0].content.nothing }}{{ 1.5.real }}",
    "{{ 'x'.join(['a', 'b']) }}{{ 'x'.startswith() }}",
    "{{ nothing.role }}",
    "{{ messages[0]['content']['upper']() }}{{ range(3) | list }}{{ dict(a=1).a }}",
]


@pytest.mark.parametrize("template", SANDBOX)
def test_the_sandbox_is_as_strict_as_jinja(template):
    messages = chat("a é", "b")

    def outcome(render):
        try:
            return render()
        except Exception as error:
            return " ".join(str(error).split())

    expected = outcome(lambda: reference(template, messages)[0])
    for is_exact in (False, True):
        ours = renderer(template, is_exact=is_exact, want_spans=False)
        got = outcome(lambda ours=ours: ours.render(messages).text)
        assert got.removeprefix("the chat template cannot render this conversation: ") == expected


def test_minimind_renders_as_transformers_does(minimind, real_chats):
    ours = ChatRenderer(
        minimind.chat_template,
        variables=minimind.special_tokens_map,
        special_tokens=minimind.special_tokens,
    )
    assert way_of(ours) == "loops"
    expected = render_jinja_template(real_chats, chat_template=minimind.chat_template, **minimind.special_tokens_map)
    rendered = [ours.render(messages) for messages in real_chats]
    assert [one.text for one in rendered] == expected[0]
    for messages, one in zip(real_chats, rendered, strict=True):
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        assert said(one) == [answer.lstrip("\n") + "<|im_end|>" for answer in answers]
    assert all(ours.mismatch(ours.read(messages)) is None for messages in real_chats[:30])


@given(st.lists(st.sampled_from(["a", "bc", *MARKS]), max_size=12))
def test_rounds_are_those_of_a_slow_search(pieces):
    """A round lasts until the next mark of its level or of one above it; those inside another are part of it."""
    pieces = [*pieces, f"{MARK}O0"]
    texts = ["" if piece in MARKS else piece for piece in pieces]
    expected, past = [], 0
    for number, piece in enumerate(pieces):
        if piece in MARKS and piece[-2] == "A" and number >= past:
            ends = (i for i in range(number + 1, len(pieces)) if pieces[i] in MARKS and pieces[i][-1] <= piece[-1])
            past = next(ends)
            expected.append((len("".join(texts[:number])), len("".join(texts[:past]))))
    assert split("".join(pieces)) == ("".join(texts), [span for span in expected if span[1] > span[0]])
