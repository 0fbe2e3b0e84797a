"""Every chat template at hand by chats of every shape: what is learned, what is lost, what depends on place."""

import re

import pytest

from tests.tokens.templates import sources
from tests.tokens.templates.conversations import CONVERSATIONS, EQUAL, Conversation
from tests.tokens.templates.oracle import HEADER, LOST, NO_LOSS, OPEN, OTHERS, TEXT, Oracle, Sample, Token, forms
from tests.tokens.templates.plain import Plain
from tests.tokens.templates.sweep import KINDS, is_wrong_reason, sweep

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def every_source():
    """As parameters: the templates of hbpack and of installed packages; for others, why there are none."""
    found = [pytest.param(source, id=source.name) for source in sources.of_hbpack()]
    for package in sources.WHEELS:
        own = sources.of_wheel(package)
        if own is None:
            skipped = pytest.mark.skip(reason=f"{package} is not installed")
            found.append(pytest.param(None, id=package, marks=skipped))
        else:
            found += [pytest.param(source, id=source.name) for source in own]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("source", every_source())
def test_what_is_learned_is_what_the_record_says(source, tmp_path, shared_data):
    swept = sweep(source, tmp_path)
    assert swept.error == ""
    found = {kind: [f"{name}: {fault.what}" for name, fault in swept.faults(kind)] for kind in KINDS}
    assert {kind: faults for kind, faults in found.items() if faults} == {}
    taken = [one for one in swept.outcomes.values() if not one.reason]
    assert taken, "each conversation was rejected"
    if re.search(r"\{%-?\s*generation", source.text):
        assert any(one.has_tags for one in taken)


def test_each_text_has_words_of_its_own():
    for chat in CONVERSATIONS.values():
        words = [word for text in chat.texts for word in {text.opening, text.closing}]
        assert len(words) == len(set(words))
        written = repr(chat.record)
        assert all(word in written for word in words)
    assert len(CONVERSATIONS) >= 24
    for name, other in EQUAL.items():
        assert CONVERSATIONS[name].texts == CONVERSATIONS[other].texts


def sample(text, *learned):
    """A sample of one token a char, but for special tokens; pieces of the text that are learned."""
    tokens = []
    ranges = [(at, at + len(piece)) for piece in learned for at in [text.index(piece)]]
    for found in re.finditer(r"<\|\w+\|>|.", text, re.DOTALL):
        start, stop = found.span()
        has_loss = any(low <= start and stop <= high for low, high in ranges)
        tokens.append(Token(start, stop, stop - start > 1, has_loss))
    return Sample(text, tokens)


@pytest.fixture
def judged():
    """judged(conversation, text, *learned, counted=(), template=CHATML) -> kinds of faults."""

    def judge(chat, text, *learned, counted=(), template=CHATML):
        faults = Oracle(Plain(template)).judge(chat, sample(text, *learned), counted)
        return sorted({fault.kind for fault in faults})

    return judge


@pytest.fixture
def chat():
    return Conversation("two turns").add("system").turns(2)


def parts(chat):
    return [message["content"] for message in chat.messages]


def text_of(chat):
    return Plain(CHATML).render(chat.messages)


def test_a_right_mask_has_no_fault(judged, chat):
    _, _, one, _, two = parts(chat)
    assert judged(chat, text_of(chat), f"{one}<|im_end|>", f"{two}<|im_end|>") == []


@pytest.mark.parametrize("at", [0, 1, 3])
def test_text_of_others_in_the_loss_is_found(judged, chat, at):
    said = parts(chat)
    learned = [f"{said[2]}<|im_end|>", f"{said[4]}<|im_end|>", said[at][-4:]]
    assert judged(chat, text_of(chat), *learned) == [OTHERS]


def test_a_header_in_the_loss_is_found(judged, chat):
    _, _, one, _, two = parts(chat)
    wrong = f"<|im_start|>assistant\n{one}<|im_end|>"
    assert judged(chat, text_of(chat), wrong, f"{two}<|im_end|>") == [HEADER]
    wrong = f"{one}<|im_end|>\n<|im_start|>user"
    assert judged(chat, text_of(chat), wrong, f"{two}<|im_end|>") == [HEADER]


def test_a_default_system_prompt_in_the_loss_is_found(judged):
    chat = Conversation("assistant first").answer()
    default = "<|im_start|>system\nHelp.<|im_end|>\n"
    text, template = (
        default + text_of(chat),
        "{% if messages[0].role != 'system' %}" + default + "{% endif %}" + CHATML,
    )
    wrong = f"Help.<|im_end|>\n<|im_start|>assistant\n{parts(chat)[0]}<|im_end|>"
    assert judged(chat, text, wrong, template=template) == [HEADER]
    assert judged(chat, text, f"{parts(chat)[0]}<|im_end|>", template=template) == []


def test_an_answer_that_is_not_learned_is_found(judged, chat):
    _, _, one, _, two = parts(chat)
    assert judged(chat, text_of(chat), f"{one}<|im_end|>") == [NO_LOSS, OPEN]
    assert judged(chat, text_of(chat), f"{one}<|im_end|>", f"{two[1:]}<|im_end|>") == [NO_LOSS]


def test_a_turn_without_an_end_is_found_unless_it_is_counted(judged, chat):
    _, _, one, _, two = parts(chat)
    assert judged(chat, text_of(chat), one, f"{two}<|im_end|>") == [OPEN]
    assert judged(chat, text_of(chat), one, f"{two}<|im_end|>", counted=["1 turn ends without a token"]) == []


def test_a_text_that_is_gone_is_found_unless_it_is_counted(judged, chat):
    said = parts(chat)
    learned = [f"{said[2]}<|im_end|>", f"{said[4]}<|im_end|>"]
    text = text_of(chat).replace(f"<|im_start|>system\n{said[0]}<|im_end|>\n", "")
    template = CHATML.replace("in messages", "in messages if m.role != 'system'")
    assert judged(chat, text, *learned, template=template) == [LOST]
    said = ["a system message, which the chat template does not write"]
    assert judged(chat, text, *learned, counted=said, template=template) == []
    assert judged(chat, text, *learned, counted=['"tools"'], template=template) == [LOST]


def test_a_text_that_transformers_does_not_write_is_found(judged, chat):
    _, _, one, _, two = parts(chat)
    text = text_of(chat).replace("user", "human")
    assert judged(chat, text, f"{one}<|im_end|>", f"{two}<|im_end|>") == [TEXT]


def test_a_record_may_be_written_in_another_form(judged):
    chat = Conversation("developer").add("developer").turns(1)
    learned = f"{parts(chat)[2]}<|im_end|>"
    assert judged(chat, text_of(chat).replace("developer", "system"), learned) == []
    written = [Plain(CHATML.replace("m.content", "m | tojson")).render(form) for form in forms(chat.messages)]
    assert len(set(written)) == 4


def test_words_that_are_quoted_belong_to_whom_quotes_them(judged):
    chat = CONVERSATIONS["quotes"]
    said = parts(chat)
    text = text_of(chat)
    learned = [f"{said[1]}<|im_end|>", f"{said[3]}<|im_end|>"]
    assert judged(chat, text, *learned) == []
    assert judged(chat, text, *learned, said[2][-12:]) == [OTHERS]


def test_a_reason_that_names_another_message_is_found(chat):
    text = text_of(chat)
    reason = "the chat template does not write message 1, of role system"
    assert is_wrong_reason(reason, chat, text)
    assert not is_wrong_reason(reason, chat, text.replace(chat.texts[0].opening, ""))
    assert not is_wrong_reason("the conversation is empty", chat, text)
