"""Long conversations take time in proportion to their length, and hostile templates come to an end."""

import gc
import re
import resource
import time

import pytest

from packer_cli.corpus.types import Document
from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates import memory
from packer_cli.tokens.templates import template as limits
from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from packer_cli.tokens.templates.conversation import TemplateRejectError
from tests.tokens.helpers import encode, encoder_of, way_of
from tests.tokens.published_templates import PUBLISHED

RECURSIVE = (
    "{% macro all(list) %}{% if list %}{{ list[0].role }}: {{ list[0].content }};{{ all(list[1:]) }}{% endif %}"
    "{% endmacro %}{{ all(messages) }}"
)


@pytest.fixture(autouse=True)
def no_callbacks_of_the_garbage_collector():
    """A tick that arrives in one, such as hypothesis's, is swallowed there; the next tick stops the template."""
    gc.disable()
    yield
    gc.enable()


def turns(count):
    return [{"role": ("user", "assistant")[i % 2], "content": f"words of turn {i}"} for i in range(count)]


def of(name, **kwargs):
    template, bos, eos, special_tokens = PUBLISHED[name]
    variables = {"bos_token": bos, "eos_token": eos}
    return ChatRenderer(template, variables=variables, special_tokens=special_tokens, **kwargs)


@pytest.mark.parametrize("name", ["qwen3", "chatml-generation"])
@pytest.mark.parametrize("is_exact", [False, True])
def test_10_000_turns_are_rendered(name, is_exact):
    ours, messages = of(name, is_exact=is_exact), turns(10_000)
    assert len(ours.render(messages).spans) == 5_000
    assert ours.mismatch(ours.read(messages)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - {"macros"}))
@pytest.mark.parametrize("is_exact", [False, True])
def test_100_000_turns_are_rendered(name, is_exact):
    assert len(of(name, is_exact=is_exact).render(turns(100_000)).spans) == 50_000


def test_templates_that_python_cannot_compile_are_refused():
    with pytest.raises(TokenizerError) as error:
        ChatRenderer("{% for a in messages %}" * 40 + "{% endfor %}" * 40, variables={})
    assert re.fullmatch(
        r"the chat template is not valid Jinja \(too many statically nested blocks.*\); give another with "
        "--chat-template FILE",
        str(error.value),
    )


def test_templates_that_take_too_long_to_compile_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "CPU_SECONDS", 0.1)
    with pytest.raises(TokenizerError) as error:
        ChatRenderer("{% if messages %}{{ messages[0].content }}{% endif %}" * 5000, variables={})
    assert str(error.value) == "the chat template takes too long to compile; give another with --chat-template FILE"


def test_many_renders_for_one_conversation_are_bounded():
    ours = ChatRenderer(RECURSIVE, variables={})
    assert way_of(ours) is None
    assert len(ours.render(turns(40)).spans) == 20
    expected = (
        "the chat template does not show who said what without rendering the beginning of the conversation again for "
        "each answer, and 2000 messages are too many for that; mark the answers with {% generation %} in the "
        "template, or split the conversation"
    )
    with pytest.raises(TemplateRejectError) as error:
        ours.render(turns(2000))
    assert str(error.value) == expected


TOO_LONG = (
    "the chat template takes too long to render this conversation; split it, or give another template with "
    "--chat-template FILE"
)
ENDLESS = [
    "{% for x in range(20000) %}{% for y in range(20000) %}{% endfor %}{% endfor %}",
    "{% set x = range(90000) | list %}{% for y in x %}{% if -1 in x %}{% endif %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in range(90000) %}{% set x = range(90000) | sum %}{% endfor %}",
]


@pytest.mark.parametrize(
    "hostile", [*ENDLESS, "{% for a in messages %}" * 16 + "{% set x = a %}" + "{% endfor %}" * 16]
)
@pytest.mark.parametrize("is_exact", [False, True])
def test_templates_that_never_end_reject_the_conversation(hostile, is_exact, monkeypatch):
    monkeypatch.setattr(limits, "CPU_SECONDS", 0.1)
    template = f"{{% if messages | length > 4 %}}{hostile}{{% endif %}}{PUBLISHED['chatml'][0]}"
    ours = ChatRenderer(template, variables={}, is_exact=is_exact)
    began = time.process_time()
    with pytest.raises(TemplateRejectError) as error:
        ours.render(turns(6))
    assert str(error.value) == TOO_LONG
    assert time.process_time() - began < 20  # It would be years.
    assert len(ours.render(turns(4)).spans) == 2


@pytest.mark.parametrize("hostile", ENDLESS)
def test_templates_that_always_take_too_long_are_refused(hostile, monkeypatch):
    monkeypatch.setattr(limits, "CPU_SECONDS", 0.1)
    with pytest.raises(TokenizerError) as error:
        ChatRenderer(hostile, variables={})
    assert str(error.value) == f"a question and its answer: {TOO_LONG}"


HUGE = [
    ("'a' * 10 ** 11", "*"),
    ("10 ** (10 ** 10)", "**"),
    ("9 ** (9 ** 9)", "**"),
    ("[1] * 10 ** 11", "*"),
    ("10 ** 11 * 'ab'", "*"),
    ("2 ** (62 ** 9)", "**"),
    ("messages * 10 ** 10", "*"),
    ("('a' * 10 ** 7) * 10 ** 7", "*"),
    ("2 ** (2 ** 25) * 2 ** (2 ** 25)", "*"),
]


@pytest.mark.parametrize(("hostile", "sign"), HUGE)
@pytest.mark.parametrize("is_exact", [pytest.param(False, marks=pytest.mark.slow), True])
def test_templates_that_ask_for_all_memory_are_refused(hostile, sign, is_exact):
    reason = (
        f"the chat template makes more than 67,108,864 items with {sign}; split the conversation, or give another "
        "template with --chat-template FILE"
    )
    value = "{% set x = " + hostile + " %}"
    with pytest.raises(TokenizerError) as error:
        ChatRenderer(value, variables={})
    assert str(error.value) == f"a question and its answer: {reason}"
    ours = ChatRenderer(
        f"{{% if messages | length > 4 %}}{value}{{% endif %}}{PUBLISHED['chatml'][0]}",
        variables={},
        is_exact=is_exact,
    )
    for _ in range(2):
        with pytest.raises(TemplateRejectError) as rejected:
            ours.render(turns(6))
        assert str(rejected.value) == reason
    assert ours.mismatch(ours.read(turns(6))) is None
    assert len(ours.render(turns(4)).spans) == 2


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ("'ab' * 3", "ababab"),
        ("3 * 'ab'", "ababab"),
        ("2 ** 10 * 2", "2048"),
        ("2.5 * 2", "5.0"),
        ("[1] * 2", "[1, 1]"),
    ],
)
def test_ordinary_products_and_powers_are_as_in_transformers(operation, text):
    ours = ChatRenderer("{{ " + operation + " }}", variables={})
    assert ours.render(turns(2)).text == text
    assert ours.mismatch(ours.read(turns(2))) is None


GREEDY = [
    "{% set x = 'x'.center(200000000000) ~ 'y' %}",
    "{% set x = '%100000000000d' % 1 %}",
    "{{ 'x' | center(200000000000) }}",
    (
        "{% set ns = namespace(x='xy') %}{% for m in messages %}{% for n in messages %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}{% endfor %}"
    ),
]
"""Far more than a heap may hold that earlier tests have left free."""


@pytest.mark.parametrize("hostile", GREEDY)
def test_templates_that_take_all_memory_reject_the_conversation(hostile, monkeypatch, load):
    monkeypatch.setattr(memory, "MEMORY_BYTES", 1 << 28)
    template = f"{{% if messages | length > 4 %}}{hostile}{{% endif %}}{PUBLISHED['chatml'][0]}"
    encoder = encoder_of(load("bytes", template))
    batch = encode(encoder, [Document("messages", line, messages=turns(count)) for line, count in ((1, 6), (2, 4))])
    assert [reject.reason for reject in batch.rejects] == [
        (
            "the chat template needs too much memory to render this conversation; split it, or give another template "
            "with --chat-template FILE"
        )
    ]
    assert batch.lines.tolist() == [2]
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == LIMIT


@pytest.mark.parametrize("hostile", ["'%90000000d' % 1", "'{:>90000000}'.format(1)"])
def test_a_template_that_writes_much_of_nothing_stops_the_run(hostile):
    with pytest.raises(TokenizerError, match="a question and its answer: the chat template writes over 67,108,864"):
        ChatRenderer(f"{{{{ {hostile} }}}}{PUBLISHED['chatml'][0]}", variables={})


LIMIT = resource.getrlimit(resource.RLIMIT_DATA)[0]
