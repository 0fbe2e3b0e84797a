"""Where the assistant's text is, and what is written, in shapes that templates treat in ways of their own."""

import pytest

from packer_cli.corpus.types import Document
from packer_cli.tokens.encode.encoder import Encoder
from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.templates.parts import LossParts
from packer_cli.tokens.templates.renderer import ChatRenderer
from packer_cli.tokens.templates.shape import Rehearsal, shape_of, short_shape
from packer_cli.tokens.templates.written import CHANGED, EARLIER_REASONING
from tests.tokens.helpers import encode, rows, turns
from tests.tokens.published_templates import PUBLISHED

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|tool|>", "</s>")
USER = {"role": "user", "content": "How warm?"}
TOOL = {"role": "tool", "content": "ten"}
LAST = {"role": "assistant", "content": "Ten degrees."}


def calling(arguments, **others):
    function = {"name": "measure", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}], **others}


def renderer(template, **options):
    return ChatRenderer(template, variables={"eos_token": "</s>"}, special_tokens=SPECIALS, **options)


def marked(template, messages, tools=None, **options):
    """The text with brackets around what carries a loss."""
    ours = renderer(template, **options)
    text, spans = ours.render(messages, tools)
    for start, stop in reversed(spans):
        text = f"{text[:start]}[{text[start:stop]}]{text[stop:]}"
    return text


def notes(template, messages, parts=None, **options):
    ours = renderer(template, **options)
    chat = ours.read(messages)
    return list(ours.review(chat, ours.render_chat(chat), parts))


HEAD = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SIMPLE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + HEAD
CLOSED_LATER = (
    "{% set ns = namespace(open=false) %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ '' if ns.open else '<results>' }}({{ m.content }}){% set ns.open = true %}"
    "{% elif m.role == 'assistant' %}"
    "{% if ns.open %}</results>{% set ns.open = false %}{% else %}<|assistant|>{% endif %}"
    "{% for c in m.tool_calls or [] %}call {{ c.function.name }}{% endfor %}{{ m.content }}</s>"
    "{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if ns.open %}</results>{% elif add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_what_closes_the_results_of_tools_is_not_the_answers():
    messages = [USER, calling({}), TOOL, TOOL, LAST]
    expected = "<|user|>How warm?<|assistant|>[call measure</s>]<results>(ten)(ten)</results>[Ten degrees.</s>]"
    assert marked(CLOSED_LATER, messages) == expected


LOOK_AHEAD = (
    "{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}"
    "{% for next in messages[loop.index:] if m.tool_calls and next.role == 'tool' %}"
    "<result>{{ next.content }}</result>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}" + HEAD
)


def test_a_turn_that_holds_the_results_of_its_calls_is_rejected_with_both_readings():
    with pytest.raises(TemplateRejectError) as error:
        renderer(LOOK_AHEAD).render([USER, calling({}), TOOL, LAST])
    assert str(error.value) == (
        "it is not certain which text of such a conversation is the assistant's: of the chat template, by its loops, "
        "the text of message 3, of role tool, would carry a loss; by the texts of shorter conversations, the chat "
        "template writes earlier messages differently as the conversation goes on, so the assistant's text cannot be "
        "told from the rest; mark it with {% generation %} in the template"
    )
    assert marked(LOOK_AHEAD, [USER, LAST]).count("[") == 1


@pytest.mark.parametrize(
    ("first", "lead"),
    [
        (
            "{% if loop.first and m.role != 'system' %}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}",
            "system\nHelp.",
        ),
        ("{{ bos if loop.first }}", ""),
    ],
)
def test_what_precedes_an_assistant_who_speaks_first_is_not_its_text(first, lead):
    template = "{% set bos = '<s>' %}" + SIMPLE.replace("<|im_start|>{{ m.role", first + "<|im_start|>{{ m.role", 1)
    text = marked(template, [LAST, USER, LAST])
    assert lead in text
    assert text.count("assistant\n[Ten degrees.<|im_end|>]") == 2
    assert text.count("[") == 2


TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
OPEN = "{{ '<|im_start|>assistant\n' }}"
ALWAYS_PROMPTS = [
    "{% for m in messages %}" + TURN + "{% endfor %}" + OPEN,
    "{% for m in messages %}" + TURN + "{% if loop.last %}" + OPEN + "{% endif %}{% endfor %}",
]


@pytest.mark.parametrize("template", ALWAYS_PROMPTS)
def test_a_prompt_that_is_always_written_is_no_part_of_a_turn(load, template):
    text = marked(template, [USER, LAST, USER, LAST], ends=("<|im_end|>",))
    assert text.count("assistant\n[Ten degrees.<|im_end|>]") == 2
    assert text.endswith("<|im_start|>assistant\n")
    # Nor does EOS follow it.
    encoder = Encoder(load("bytes", template), append_eos="auto")
    ((_, mask),) = rows(encode(encoder, [Document("messages", 1, messages=[USER, LAST])]))
    assert mask[-1] == 0


def test_the_token_of_the_next_turn_ends_a_turn_if_the_model_stops_there():
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}call {{ c.function.name }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    messages = [USER, calling({}), TOOL, LAST, USER, LAST]
    first = "<|user|>How warm?<|assistant|>"
    assert marked(template, messages, ends=("<|user|>", "<|tool|>")) == (
        f"{first}[call measure<|tool|>]ten<|assistant|>[Ten degrees.<|user|>]How warm?<|assistant|>[Ten degrees.]"
    )
    assert marked(template, messages) == (
        f"{first}[call measure]<|tool|>ten<|assistant|>[Ten degrees.]<|user|>How warm?<|assistant|>[Ten degrees.]"
    )
    assert any("without a token that ends a turn" in note for note in notes(template, messages))
    assert not notes(template, messages, ends=("<|user|>", "<|tool|>"))
    assert not notes(SIMPLE, [USER, LAST, USER, LAST])


def test_white_space_before_anothers_turn_is_not_trained_on():
    """A token may hold it and the first letters of that turn."""
    turn, prompt = "{{ m.role | upper }}: {{ m.content }} ", "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
    template = "{% for m in messages %}" + turn + "{% endfor %}" + prompt
    assert marked(template, [USER, LAST, USER]) == "USER: How warm? ASSISTANT: [Ten degrees.] USER: How warm? "
    tags = "{% if m.role == 'assistant' %}ASSISTANT: {% generation %}{{ m.content }} {% endgeneration %}{% else %}"
    tagged = "{% for m in messages %}" + tags + turn + "{% endif %}{% endfor %}" + prompt
    assert marked(tagged, [USER, LAST, USER]) == "USER: How warm? ASSISTANT: [Ten degrees.] USER: How warm? "


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


CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ ARGUMENTS }}{% endfor %}"
OBJECTS = SIMPLE.replace("{{ m.content }}", "{{ m.content }}" + CALLS)
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
    assert notes(SIMPLE, messages) == ['messages with "mood", which the chat template does not write']
    assert not notes(SIMPLE.replace("{{ m.role }}", "{{ m.role }} {{ m.mood }}"), messages)


def test_a_text_that_is_written_in_part_is_counted():
    template = SIMPLE.replace("{{ m.content }}", "{{ m.content[:12] }}")
    assert not notes(template, turns("How warm?", "Ten."))
    assert notes(template, turns("How warm is it?", "Ten.")) == [
        "a text that the chat template writes in part, or changed"
    ]
    assert not notes(SIMPLE.replace("{{ m.content }}", "{{ m.content | tojson }}"), turns('How "warm"?\n', "Ten."))


def test_a_mask_does_not_depend_on_the_place_of_a_record(load):
    """A shape that comes first among the others, or late, or alone, is read alike."""
    encoder = Encoder(load("bytes", CLOSED_LATER))
    odd = [USER, calling({}), TOOL, LAST]
    alone = rows(encode(encoder, [Document("messages", 1, messages=odd)]))
    plain = [Document("messages", line, messages=[USER, LAST]) for line in range(1, 41)]
    encoder.start_part()
    late = rows(encode(encoder, [*plain, Document("messages", 41, messages=odd)]))
    encoder.start_part()
    early = rows(encode(encoder, [Document("messages", 1, messages=odd), *plain]))
    assert alone == late[-1:] == early[:1]
    assert not encoder.warnings


def test_repetitions_are_shortened_and_rehearsed_words_differ():
    ours = renderer(PUBLISHED["qwen3"][0])
    messages = [USER, *[calling({}), TOOL, TOOL, TOOL, TOOL, TOOL] * 40, LAST, *turns("a", "b") * 30]
    chat = ours.read(messages)
    tools, short = short_shape(shape_of(chat))
    assert len(short) < 30
    made_up = Rehearsal(tools, short)
    words = [word for own in made_up.words for word in own]
    assert len(set(words)) == len(words) >= len(short)
    assert [message["role"] for message in made_up.messages] == [turn.role for turn in short]
    assert len(ours.render_chat(chat).spans) == 71
    assert short_shape(shape_of(ours.read(messages[:5])))[1] == short[:5]


def test_a_record_without_an_assistant_says_which_roles_it_has(load):
    messages = [USER, {"role": "critic", "content": "No."}]
    for loss_on, reasons in (("completion", ["its roles are user and critic"]), ("all", [])):
        batch = encode(Encoder(load("bytes", SIMPLE), loss_on=loss_on), [Document("messages", 1, messages=messages)])
        assert [reject.reason.partition(": ")[2] for reject in batch.rejects] == reasons


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


def test_loops_over_other_things_than_messages_are_no_turns():
    parts = "{% for part in m.content %}{{ part.text }}{% endfor %}"
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}|{% else %}"
        + parts
        + "{% endif %}{% endfor %}"
    )
    odd = [{"type": "text", "text": "secret", "role": "assistant"}]
    with pytest.raises(TemplateRejectError, match="more turns of the assistant than there are messages"):
        notes(template, [USER, LAST, {"role": "tool", "content": odd}, LAST])
    listed = "{% for m in messages %}{{ m.role }},{% endfor %}" + SIMPLE
    with pytest.raises(TemplateRejectError, match="not certain which text"):
        renderer(listed).render([USER, LAST])


def test_long_conversations_are_read_piece_by_piece():
    ours = renderer(PUBLISHED["qwen3"][0])
    messages = [USER]
    for number in range(40):
        call = calling({} if number % 3 else {"at": "Oslo"}, **({"reasoning_content": "Hm."} if number % 2 else {}))
        messages += [{**call, "content": "" if number % 5 else "So."}, *[TOOL] * (1 + number % 4)]
    messages.append(LAST)
    text, spans = ours.render(messages)
    assert len(spans) == 41
    said = [text[start:stop] for start, stop in spans]
    assert all(part.endswith("<|im_end|>") and "ten" not in part for part in said[:-1])
    assert "Ten degrees." in said[-1]
    assert ours.render(messages) == renderer(PUBLISHED["qwen3"][0], engine="jinja2").render(messages)


def test_arguments_that_nest_too_deeply_are_words():
    ours = renderer(OBJECTS.replace("ARGUMENTS", "c.function.arguments"))
    deep = "[" * 100_000
    assert deep in ours.render([USER, calling(deep), TOOL, LAST]).text


THINKS_FIRST = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def test_a_header_holds_no_part_of_a_tag():
    """`<tool_call>` and the `<think>` of the generation prompt begin alike."""
    table = {"role": "assistant", "content": "<table>x</table>"}
    text = marked(THINKS_FIRST, [USER, table, USER, calling({}), TOOL, LAST])
    assert "[<table>x</table><|im_end|>]" in text
    assert "[<tool_call>measure</tool_call><|im_end|>]" in text


PROMPTLESS = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% if loop.last %}<|assistant|>{% endif %}"
    "{% else %}<|assistant|>{{ m.content }}</s>{% endif %}{% endfor %}"
)


def test_a_blank_turn_begins_as_one_with_text():
    blank = {"role": "assistant", "content": ""}
    assert marked(PROMPTLESS, [USER, blank]) == "<|user|>How warm?<|assistant|>[</s>]"
    assert marked(PROMPTLESS, [USER, blank, USER, LAST]).startswith("<|user|>How warm?<|assistant|>[</s>]<|user|>")


TWO_TURNS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>"
    "{% for c in m.tool_calls or [] %}call {{ c.function.name }}</s><|assistant|>{% endfor %}{{ m.content }}</s>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_message_that_is_written_as_two_turns_is_rejected():
    assert marked(TWO_TURNS, [USER, LAST]).endswith("<|assistant|>[Ten degrees.</s>]")
    with pytest.raises(TemplateRejectError, match="writes more turns of the assistant than there are messages"):
        marked(TWO_TURNS, [USER, calling({}) | {"content": "Let me look."}, TOOL, LAST])


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


def test_a_template_may_end_every_conversation():
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ eos_token }}"
    assert marked(template, [USER, LAST]) == "user: How warm?[assistant: Ten degrees.</s>]"
