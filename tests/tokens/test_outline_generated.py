"""What an outline gives for a conversation is what jinja2 renders, or it is left to jinja2."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from packer_cli.tokens.templates.conversation import TemplateRejectError
from tests.tokens.helpers import turns

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
CHATS = [
    turns(*contents)
    for contents in (
        ("hello", "world"), (" a,b,,c\t", "Straße İ\n"), ("user", "t"), ("x", "x"), ("\n-\n", " q"), ("7", "a"),
        ("None", "[]"), ("a", "Hello you"), ("\u00a0x\x1c", "\x85y"), ("{{ m }}", "qzx0001vj"), ("role", "'a'"),
    )
]  # fmt: skip

OPERANDS = [
    "m", "m.role", "m.content", "m['content']", "m.content.strip()", "messages[0].content", "m.content ~ '|'",
    "[m.content]", "m.missing", "m['items']", "tools", "messages", "messages[5]", "unknown", "ns.text", "ns.missing",
    "loop.index", "loop.first", "loop.previtem", "none", "true", "0", "7", "-2", "'a'", "','", "''", "[]",
    "['a', none]", "{}", "{'a': 1}", "x.split(',')", "(4 / 2)",
]  # fmt: skip
EXPRESSIONS = [
    "{a}", "[{a}]|first", "{a} ~ {b}", "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} // {b}", "{a} % {b}", "{a} / {b}",
    "{a} ** {b}", "{a} < {b}", "{a} >= {b}", "{a} == {b}", "{a} != {b}", "{a} in {b}", "{a} not in {b}",
    "{a} is in({b})", "{a} and {b}", "{a} or {b}", "not {a}", "({a} if {b})", "{a}[{b}]", "{a}[{b}:]", "{a}[:{b}]",
    "{a}[::-1]", "{a}[1:-1]", "{a}.role", "{a} is string", "{a} is defined", "{a} is none", "{a} is mapping",
    "{a} is number", "{a} is integer", "{a} is float", "{a} is boolean", "{a} is true", "{a} is odd", "{a} is even",
    "{a} is iterable", "{a} is sequence", "{a}|trim", "{a}|trim({b})", "{a}|length", "{a}|list", "{a}|first",
    "{a}|last", "{a}|upper", "{a}|title", "{a}|string", "{a}|tojson", "{a}|tojson(indent=2)", "[{a}, {b}]|tojson",
    "{a}|default({b})", "{a}|default({b}, true)", "{a}|join", "{a}|join({b})", "{a}|join('-')", "{a}|replace('a', '')",
    "{a}|items|list", "{a}|reverse|list", "{a}|reverse|join", "{a}|map(attribute='type')|list", "{a}|select|list",
    "{a}|select('string')|list|length", "{a}|reject('equalto', {b})|join('-')",
    "{a}|selectattr('role')|list|length", "{a}|selectattr('role', 'equalto', {b})|list|length", "{a}.strip()",
    "{a}.strip({b})", "{a}.lstrip('\\n')", "{a}.split({b})", "{a}.split('')", "{a}.split(',', {b})",
    "{a}.split(',')[0]", "{a}.startswith({b})", "{a}.replace('', {b})", "{a}.get({b})", "{a}.get('a', {b})",
    "{a}.upper()", "{a}.title()", "{a}|int", "{a}|attr('strip')", "{a}|random", "{{{a}: 1}}[{b}]", "{a} is sameas {b}",
    "'%s' % {a}", "'{{}}'.format({a})", "{a}.items()|list", "{a}|dictsort|first", "{a}.count({b})", "{a}.rstrip()",
    "{a}.removeprefix({b})", "{a}.partition(',')", "{a}.find({b})", "say({a})", "say({a}, {b})", "x ~ {a}",
]  # fmt: skip
STATEMENTS = [
    "{{{{ {e} }}}}", "{{% if {e} %}}yes{{% else %}}no{{% endif %}}", "{{% set v = {e} %}}{{{{ v }}}}",
    "{{% set ns.text = {e} %}}{{{{ ns.text }}}}{{{{ ns.text is defined }}}}",
    "{{% for v in {e} %}}{{{{ v }}}}{{{{ loop.index }}}}{{{{ loop.last }}}}{{% else %}}nothing{{% endfor %}}",
    "{{% for v in {e} %}}{{% continue %}}{{% else %}}nothing{{% endfor %}}",
    "{{% for k, v in {e} %}}{{{{ k }}}}{{{{ v }}}}{{% endfor %}}",
    "{{% set v %}}{{{{ {e} }}}}{{% endset %}}[{{{{ v }}}}]",
]  # fmt: skip
HEAD = "{% macro say(a, b='q') %}[{{ a }}{{ b }}]{% endmacro %}{% set ns = namespace(text='t') %}{% set x = 'a,b' %}"


NAMES = [
    "y", "z", "q", "q.role", "m.role", "m.content", "m.content|trim", "ns.text", "ns.n", "loop.index", "loop.first",
    "messages|length", "'a'", "3", "none", "false",
]  # fmt: skip
VALUES = st.sampled_from(NAMES)
TESTS = st.one_of(
    st.sampled_from(
        ["loop.first", "loop.last", "ns.text", "y", "q is string", "y is defined", "z is none", "m.content"]
    ),
    st.builds("{} == {}".format, VALUES, VALUES),
    st.builds("not {}".format, VALUES),
)
LISTS = st.sampled_from(["messages", "messages[1:]", "messages[::-1]", "m.content.split('a')", "['a', m.role]", "y"])
TARGETS = st.sampled_from(["y", "z", "ns.text", "ns.n"])
PROGRAMS = st.recursive(
    st.one_of(
        st.sampled_from(["text", " \n", "{% set ns.n = ns.n + 1 %}", "{{ say(y) }}"]),
        st.builds("{{{{ {} }}}}".format, VALUES),
        st.builds("{{{{ {} ~ {} }}}}".format, VALUES, VALUES),
        st.builds("{{% set {} = {} %}}".format, TARGETS, VALUES),
        st.builds("{{% if {} %}}{{% {} %}}{{% endif %}}".format, TESTS, st.sampled_from(["break", "continue"])),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.builds("{{% if {} %}}{}{{% else %}}{}{{% endif %}}".format, TESTS, inner, inner),
        st.builds("{{% for q in {} %}}{}{{% endfor %}}".format, LISTS, inner),
        st.builds(
            "{{% for q in {} %}}{{% if ns.text and {} %}}{{% set ns.text = {} %}}{}{{% endif %}}{{% endfor %}}".format,
            LISTS,
            TESTS,
            st.sampled_from(["false", "q"]),
            inner,
        ),
        st.builds("{{% for q in {} if {} %}}{}{{% else %}}{}{{% endfor %}}".format, LISTS, TESTS, inner, inner),
        st.builds("{{% set z %}}{}{{% endset %}}".format, inner),
        st.builds("{{% with y = {} %}}{}{{% endwith %}}".format, VALUES, inner),
    ),
    max_leaves=12,
)


def outlined(source: str) -> int:
    """The number of chats that outlines give; they are compared."""
    source = f"{HEAD}{{% for m in messages %}}{{{{ m.role ~ m.content }}}}{source}{{% endfor %}}"
    ours, exact = (
        ChatRenderer(source, variables=VARIABLES, want_spans=False, is_exact=given) for given in (False, True)
    )
    num_outlined = 0
    for messages in CHATS:
        try:
            found = ours.render(messages)
        except TemplateRejectError:
            continue
        if found.notes is not None:
            num_outlined += 1
            try:
                assert found.text == exact.render(messages).text, source
            except TemplateRejectError as error:
                pytest.fail(f"jinja2 cannot render {source} ({error}), and an outline does")
    return num_outlined


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_generated_templates_are_filled_as_rendered() -> None:
    num_outlined = 0

    @given(
        st.sampled_from(STATEMENTS), st.sampled_from(EXPRESSIONS), st.sampled_from(OPERANDS), st.sampled_from(OPERANDS)
    )
    @settings(max_examples=100)
    def check(statement: str, expression: str, one: str, other: str) -> None:
        nonlocal num_outlined
        num_outlined += outlined(statement.format(e=expression.format(a=f"({one})", b=f"({other})")))

    check()
    assert num_outlined > 40


def test_generated_programs_are_filled_as_rendered() -> None:
    num_outlined = 0

    @given(PROGRAMS)
    @settings(max_examples=100)
    def check(source: str) -> None:
        nonlocal num_outlined
        num_outlined += outlined(f"{{% set ns.n = 0 %}}{source}")

    check()
    assert num_outlined > 30


@pytest.mark.parametrize(
    "write",
    [
        "{{ m.content | trim }}",
        "{{ '\\n' + m.content.lstrip('\\n') ~ '|' }}",
        "{% if m.content.startswith('<tool') %}tool{% else %}{{ m.content.split('</think>')[-1].strip() }}{% endif %}",
        "{% if m.content is string and 'xyz' != m.content %}{{ m.content }}{% endif %}",
        "{% set c %}{{ m.content }}{% endset %}{{ say(c | trim) if c | length > 0 }}",
        "{% set c = m.content | default('', true) | string %}{{ c.replace('<s>', '') }}",
    ],
)
def test_what_templates_do_has_outlines(write: str) -> None:
    source = f"{HEAD}{{% for m in messages %}}{{{{ m.role }}}}{write}{{% endfor %}}"
    ours = ChatRenderer(source, variables=VARIABLES, want_spans=False)
    assert ours.render(CHATS[0]).notes is not None
    odd = turns("<s> <tool", "x")
    assert (
        ours.render(odd).text
        == ChatRenderer(source, variables=VARIABLES, is_exact=True, want_spans=False).render(odd).text
    )


def test_a_date_that_may_change_has_no_outlines() -> None:
    source = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    for date, has_outlines in ((None, False), ("2024-05-06", True)):
        ours = ChatRenderer(source, variables=VARIABLES, want_spans=False, date=date)
        assert (ours.render(CHATS[0]).notes is not None) == has_outlines
