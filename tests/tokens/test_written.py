"""Messages, calls and texts that a template does not write, or writes in another form."""

import pytest

from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.templates.parts import LossParts
from packer_cli.tokens.templates.written import CHANGED, EARLIER_REASONING
from tests.tokens.helpers import turns
from tests.tokens.rehearsed import HEAD, LAST, OBJECTS, SIMPLE, TOOL, TURN, USER, calling, marked, notes, renderer


@pytest.mark.parametrize("role", ["developer", "critic", "function"])
def test_messages_that_are_not_written_reject_the_record(role):
    """A developer's are those of the system where the template knows only that."""
    template = "{% for m in messages if m.role in ('system', 'user', 'assistant') %}" + TURN + "{% endfor %}" + HEAD
    messages = [{"role": role, "content": "Be brief."}, USER, LAST]
    if role == "developer":
        assert marked(template, messages) == marked(template, [{**messages[0], "role": "system"}, USER, LAST])
        assert "developer\nBe brief." in marked(SIMPLE, messages)
        return
    with pytest.raises(TemplateRejectError, match=f"does not write message 1, of role {role}, in such a conversation"):
        notes(template, messages)
    assert not notes(SIMPLE, messages)


def test_a_system_message_that_is_lost_in_the_middle_rejects_the_record():
    template = "{% for m in messages if m.role != 'system' or m == messages[0] %}" + TURN + "{% endfor %}" + HEAD
    system, other = ({"role": "system", "content": content} for content in ("Be brief.", "Go."))
    with pytest.raises(TemplateRejectError, match="of role system"):
        notes(template, [system, USER, LAST, other, USER, LAST])
    assert not notes(template, [system, USER, LAST])


GIVEN = "c.function.arguments"


FORMS = {
    "as json": (f"{GIVEN} | tojson", '{"at": "Oslo"}'),
    "by items": (f"{GIVEN}.items() | map('join', '=') | join(',')", "at=Oslo"),
    "only objects": (f"({GIVEN}.values() | join if {GIVEN} is mapping else '')", "Oslo"),
    "only texts": (f"' ' ~ ({GIVEN} + '')", ' {"at": "Oslo"}'),
    "either": (f"({GIVEN} if {GIVEN} is string else {GIVEN} | tojson)", '{"at": "Oslo"}'),
    "texts in braces": (
        f"('{{' + {GIVEN} + '}}' if {GIVEN} is string else {GIVEN}.items() | first | join('/'))",
        "at/Oslo",
    ),
}


"""How a template writes arguments, and the right text."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [{"at": "Oslo"}, '{"at": "Oslo"}'])
def test_arguments_take_the_form_that_the_template_writes(form, given):
    expression, written = FORMS[form]
    text = marked(OBJECTS.replace("ARGUMENTS", expression), [USER, calling(given), TOOL, LAST])
    assert f"[measure{written}<|im_end|>]" in text


def test_arguments_that_no_form_writes_are_counted():
    template = OBJECTS.replace("{{ ARGUMENTS }}", "")
    assert notes(template, [USER, calling({"at": "Oslo"}), TOOL, LAST]) == [
        "arguments of tool calls, which the chat template does not write"
    ]
    quoted = OBJECTS.replace("ARGUMENTS", "c.function.arguments | tojson")
    assert not notes(quoted, [USER, calling('["a"]'), TOOL, LAST])
    rounded = OBJECTS.replace("ARGUMENTS", "c.function.arguments | tojson | replace('2.5', '2') | replace('25', '20')")
    for number in (2.5, 25):
        assert not notes(quoted, [USER, calling({"at": number}), TOOL, LAST])
        assert notes(rounded, [USER, calling({"at": number}), TOOL, LAST]) == [CHANGED]


ONE_CALL = OBJECTS.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:1]").replace(
    "{{ m.content }}", "{{ m.content if not m.tool_calls }}"
)


ONE_CALL = ONE_CALL.replace("ARGUMENTS", "c.function.arguments | tojson")


def test_an_answer_that_loses_calls_or_content_is_rejected_if_it_is_trained_on():
    call = calling({"at": "Oslo"})
    twice = {**call, "tool_calls": call["tool_calls"] * 2}
    beside = {**call, "content": "Let me look."}
    twice["tool_calls"][1] = {"type": "function", "function": {"name": "weigh", "arguments": {}}}
    for lost, what, carried in ((twice, "tool calls", "tool-calls"), (beside, "content", "no-reasoning")):
        messages = [USER, lost, TOOL, LAST]
        for parts in (None, LossParts.of(carried)):
            with pytest.raises(TemplateRejectError, match=f"does not write the {what} of message 2, which should"):
                notes(ONE_CALL, messages, parts)
        assert notes(ONE_CALL, messages, LossParts.of("last-turn")) == [
            f"{what} in turns without a loss on it, which the chat template does not write"
        ]
    assert not notes(ONE_CALL, [USER, call, TOOL, LAST])


STRIPPED = "m.content.split('</think>')[-1]"


STRIPS = SIMPLE.replace("m.content", f"({STRIPPED} if m.role == 'assistant' else m.content)")


KEEPS_LAST = SIMPLE.replace("m.content", f"(m.content if loop.last or m.role == 'user' else {STRIPPED})")


def test_reasoning_that_is_left_out_is_counted():
    thinking = {"role": "assistant", "content": "<think>\nIt is May.\n</think>\n\nTen degrees."}
    lost = ["reasoning, which the chat template does not write"]
    assert notes(STRIPS, [USER, thinking]) == lost
    assert notes(SIMPLE, [USER, {**LAST, "reasoning_content": "It is May."}]) == lost
    assert notes(KEEPS_LAST, [USER, thinking, USER, thinking]) == [EARLIER_REASONING]
    assert not notes(KEEPS_LAST, [USER, thinking])
    assert not notes(SIMPLE, [USER, thinking, USER, thinking])


PARTS_ONLY = SIMPLE.replace(
    "{{ m.content }}", "{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}"
)


def test_strings_become_parts_and_one_part_a_string():
    in_parts = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in (USER, LAST)]
    assert marked(PARTS_ONLY, [USER, LAST]) == marked(SIMPLE, [USER, LAST])
    assert marked(PARTS_ONLY, in_parts) == marked(SIMPLE, [USER, LAST])
    assert marked(SIMPLE, in_parts) == marked(SIMPLE, [USER, LAST])
    several = [USER, {**LAST, "content": in_parts[1]["content"] * 2}]
    assert marked(PARTS_ONLY, several).count("Ten degrees.Ten degrees.") == 1
    with pytest.raises(TemplateRejectError, match="parts; write it as a string"):
        marked(SIMPLE, several)


def test_keys_of_messages_that_nobody_reads_are_counted():
    messages = [{**USER, "mood": "curious", "name": "Ada"}, LAST]
    assert notes(SIMPLE, messages) == [
        f'messages with "{key}", which the chat template does not write' for key in ("mood", "name")
    ]
    assert not notes(SIMPLE.replace("{{ m.role }}", "{{ m.role }} {{ m.mood }} {{ m.name }}"), messages)


def test_the_name_of_a_function_is_no_participant():
    template = OBJECTS.replace("ARGUMENTS", "c.function.arguments")
    result, asked = {**TOOL, "name": "measure"}, {**USER, "name": "Ada"}
    assert not notes(template, [USER, calling({}), result, LAST])
    named = template.replace("{{ m.role }}", "{{ m.role }} {{ m.name if m.role == 'user' }}")
    assert not notes(named, [USER, calling({}), result, asked, LAST])


def test_a_text_that_is_written_in_part_is_counted():
    template = SIMPLE.replace("{{ m.content }}", "{{ m.content[:12] }}")
    assert not notes(template, turns("How warm?", "Ten."))
    assert notes(template, turns("How warm is it?", "Ten.")) == [
        "a text that the chat template writes in part, or changed"
    ]
    assert not notes(SIMPLE.replace("{{ m.content }}", "{{ m.content | tojson }}"), turns('How "warm"?\n', "Ten."))


def test_a_call_of_which_only_the_id_is_written_must_have_the_name_in_it():
    template = OBJECTS.replace("c.function.name", "c.id").replace("ARGUMENTS", "c.function.arguments | tojson")
    named, other = (calling({"at": "Oslo"}) for _ in range(2))
    named["tool_calls"][0]["id"], other["tool_calls"][0]["id"] = "functions.measure:0", "call_7"
    assert not notes(template, [USER, named, TOOL, LAST])
    with pytest.raises(TemplateRejectError, match="does not write the name of a function that message 2 calls"):
        notes(template, [USER, other, TOOL, LAST])


def test_text_of_others_that_only_some_words_bring_into_a_turn_rejects_the_record():
    """A rehearsal cannot know these words; the record's own turn shows what is too much."""
    extra = "{{ ' RESULT: ' + messages[0].content if m.role == 'assistant' and messages[0].content[0] == '{' }}"
    template = SIMPLE.replace("{{ m.content }}", "{{ m.content }}" + extra)
    assert not notes(template, [USER, LAST])
    with pytest.raises(TemplateRejectError, match=r"'RESULT: \{secret\}<\|im_end\|>' besides the message's own text"):
        notes(template, [{**USER, "content": "{secret}"}, LAST])
    # White space of the message's own is no other text.
    assert not notes(SIMPLE, [USER, {**LAST, "content": " \n Ten. \n"}])


def test_messages_that_are_lost_only_in_long_conversations_reject_the_record():
    template = SIMPLE.replace("in messages %}", "in messages[-10:] %}")
    messages = turns(*(f"{word} number {number}" for number in range(20) for word in ("question", "answer")))
    assert not notes(template, messages[:10])
    with pytest.raises(TemplateRejectError, match="does not write message 1, of role user"):
        notes(template, messages)
    three = calling({})["tool_calls"] * 3
    first_two = OBJECTS.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:2]").replace("ARGUMENTS", "''")
    with pytest.raises(TemplateRejectError, match="does not write the tool calls of message 2"):
        notes(first_two, [USER, {**calling({}), "tool_calls": three}, TOOL, LAST])


def test_arguments_that_nest_too_deeply_are_words():
    ours = renderer(OBJECTS.replace("ARGUMENTS", "c.function.arguments"))
    deep = "[" * 100_000
    assert deep in ours.render([USER, calling(deep), TOOL, LAST]).text


@pytest.mark.parametrize("given", ['{"at": "Oslo", "at": "Bergen"}', '{"a": [{"b": 1, "b": 1}]}'])
def test_an_argument_that_stands_twice_rejects_the_record(given):
    with pytest.raises(TemplateRejectError, match="in the arguments of a call has a key twice, of "):
        renderer(OBJECTS.replace("ARGUMENTS", "c.function.arguments | tojson")).render([USER, calling(given), LAST])


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_numbers_that_json_does_not_have_reject_the_record(number):
    ours = renderer(OBJECTS.replace("ARGUMENTS", "c.function.arguments | tojson"))
    with pytest.raises(TemplateRejectError, match=f"hold {number}, which is no number of JSON"):
        ours.render([USER, calling(f'{{"x": {number}}}'), TOOL, LAST])
    for text in (number, f"[{number}]", f'{{"x": {number}}}'):
        verbatim = renderer(OBJECTS.replace("ARGUMENTS", "c.function.arguments ~ ''"))
        assert f"measure{text}<" in verbatim.render([USER, calling(text), TOOL, LAST]).text
    assert '{"x": 1.5, "y": 1e+300}' in ours.render([USER, calling('{"x": 1.50, "y": 1e300}'), TOOL, LAST]).text


ONCE = SIMPLE.replace("{{ m.content }}", "{{ m.content if loop.first or m.content != messages[0].content }}")


def test_a_text_that_is_written_once_is_not_two_messages():
    brief, kind = ({"role": "system", "content": f"Be {how}."} for how in ("brief", "kind"))
    assert not notes(ONCE, [brief, USER, LAST, kind, USER, LAST])
    with pytest.raises(TemplateRejectError, match="does not write message 4, of role system"):
        notes(ONCE, [brief, USER, LAST, brief, USER, LAST])


def test_arguments_that_are_a_list_are_looked_for():
    template = OBJECTS.replace(
        "ARGUMENTS", "c.function.arguments.items() | list | string if c.function.arguments is mapping"
    )
    assert notes(template, [USER, calling(["Oslo"]), TOOL, LAST]) == [
        "arguments of tool calls, which the chat template does not write"
    ]


def test_a_key_counts_as_written_if_its_text_is():
    template = "{# text #}" + SIMPLE
    document = {**USER, "text": "The document."}
    assert notes(template, [document, LAST]) == ['messages with "text", which the chat template does not write']
    assert not notes(template.replace("{{ m.content }}", "{{ m.content }}{{ m.text }}"), [document, LAST])


@pytest.mark.parametrize("said", ["a", "in", "final", "message", "channel"])
def test_short_answers_may_be_words_of_the_template(said):
    template = SIMPLE.replace(
        "{{ m.content }}", "{{ 'channel final message in a ' if m.role != 'user' }}{{ m.content }}"
    )
    answer = {"role": "assistant", "content": said}
    assert not notes(template, [USER, answer])
