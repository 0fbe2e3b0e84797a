"""The assistant's text in shapes that templates treat in ways of their own."""

import pytest

from packer_cli.corpus.types import Document
from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.templates.shape import Rehearsal, short_shape
from tests.tokens.helpers import encode, encoder_of, rows, turns
from tests.tokens.published_templates import PUBLISHED
from tests.tokens.rehearsed import HEAD, LAST, SIMPLE, TOOL, TURN, USER, calling, marked, notes, renderer

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
    encoder = encoder_of(load("bytes", template), append_eos="auto")
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


def test_a_mask_does_not_depend_on_the_place_of_a_record(load):
    """A shape that comes first among the others, or late, or alone, is read alike."""
    encoder = encoder_of(load("bytes", CLOSED_LATER))
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
    tools, short = short_shape(chat.shape)
    assert len(short) < 30
    made_up = Rehearsal(tools, short)
    words = [word for own in made_up.words for word in own]
    assert len(set(words)) == len(words) >= len(short)
    assert [message["role"] for message in made_up.messages] == [turn.role for turn in short]
    assert len(ours.render_chat(chat).spans) == 71
    assert short_shape(ours.read(messages[:5]).shape)[1] == short[:5]


def test_a_record_without_an_assistant_says_which_roles_it_has(load):
    messages = [USER, {"role": "critic", "content": "No."}]
    for loss_on, reasons in (("completion", ["its roles are user and critic"]), ("all", [])):
        batch = encode(
            encoder_of(load("bytes", SIMPLE), loss_on=loss_on), [Document("messages", 1, messages=messages)]
        )
        assert [reject.reason.partition(": ")[2] for reject in batch.rejects] == reasons


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
    text, spans, _ = ours.render(messages)
    assert len(spans) == 41
    said = [text[start:stop] for start, stop in spans]
    assert all(part.endswith("<|im_end|>") and "ten" not in part for part in said[:-1])
    assert "Ten degrees." in said[-1]
    assert ours.render(messages)[:2] == renderer(PUBLISHED["qwen3"][0], is_exact=True).render(messages)[:2]


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


def test_a_template_may_end_every_conversation():
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ eos_token }}"
    assert marked(template, [USER, LAST]) == "user: How warm?[assistant: Ten degrees.</s>]"
