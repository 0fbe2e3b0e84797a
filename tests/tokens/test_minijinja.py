"""What minijinja renders is what jinja2 renders, or it is left to jinja2."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.tokens.templates.conversation import TemplateRejectError, read_chat
from packer_cli.tokens.templates.minijinja import MinijinjaTemplate
from packer_cli.tokens.templates.renderer import ChatRenderer
from packer_cli.tokens.templates.rules import NotTranslatableError
from packer_cli.tokens.templates.template import CompiledTemplate

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
MESSAGE = {
    "role": "user",
    "content": "Straße İ\n",
    "list": [1, None, "é\xa0", {"type": "text"}],
    "dict": {"b": 1, "a": [True, 0.25]},
    "number": -3,
    "half": 0.5,
    "yes": True,
    "empty": "",
    "none": [],
}
CHATS = [read_chat([MESSAGE, {"role": "assistant", "content": " a,b,,c\t"}])]
CHATS += [read_chat([{"role": "user", "content": " x</think>y "}, {"role": "assistant", "content": "z"}])]

OPERANDS = [
    "m", "m.role", "m.content", "m.list", "m.list[1]", "m.dict", "m.dict.a", "m.number", "m.half", "m.yes", "m.empty",
    "m.none", "m.missing", "m['items']", "tools", "messages", "messages[5]", "unknown", "ns.text", "ns.missing",
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
    "{a}.upper()", "{a}.title()",
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


def translated(template, place):
    """None where minijinja may mean something else."""
    try:
        return MinijinjaTemplate(template, place)
    except NotTranslatableError:
        return None


NAMES = [
    "y", "z", "q", "q.role", "m.role", "m.content", "m.list", "m.empty", "ns.text", "ns.n", "loop.index", "loop.first",
    "messages|length", "'a'", "3", "none", "false",
]  # fmt: skip
VALUES = st.sampled_from(NAMES)
TESTS = st.one_of(
    st.sampled_from(["loop.first", "loop.last", "ns.text", "y", "q is string", "y is defined", "z is none", "m.yes"]),
    st.builds("{} == {}".format, VALUES, VALUES),
    st.builds("not {}".format, VALUES),
)
LISTS = st.sampled_from(["messages", "messages[1:]", "messages[::-1]", "m.list", "['a', m.role]", "y", "m.none"])
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


def rendered(source: str) -> list[bool]:
    """Whether minijinja rendered each of the chats; what it rendered is compared."""
    source = f"{HEAD}{{% for m in messages %}}{source}{{% endfor %}}"
    exact = CompiledTemplate(source, VARIABLES)
    ours = translated(exact, None)
    done = []
    for chat in CHATS:
        assert chat.is_safe
        found = None if ours is None else ours.rounds(chat)
        done.append(found is not None)
        if found is not None:
            try:
                assert found[0] == exact.text(exact.context(chat)), source
            except TemplateRejectError as error:
                pytest.fail(f"jinja2 cannot render {source} ({error}), and minijinja does")
    return done


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_generated_templates_are_rendered_alike() -> None:
    num_rendered = 0

    @given(
        st.sampled_from(STATEMENTS), st.sampled_from(EXPRESSIONS), st.sampled_from(OPERANDS), st.sampled_from(OPERANDS)
    )
    @settings(max_examples=200)
    def check(statement: str, expression: str, one: str, other: str) -> None:
        nonlocal num_rendered
        num_rendered += sum(rendered(statement.format(e=expression.format(a=f"({one})", b=f"({other})"))))

    check()
    assert num_rendered > 40


def test_generated_programs_are_rendered_alike() -> None:
    num_rendered = 0

    @given(PROGRAMS)
    @settings(max_examples=100)
    def check(source: str) -> None:
        nonlocal num_rendered
        num_rendered += sum(rendered(f"{{% set ns.n = 0 %}}{source}"))

    check()
    assert num_rendered > 30


@pytest.mark.parametrize(
    "source",
    [
        "{{ m.content[1:] }}{{ m.content[:-1] }}{{ m.content[::-1] }}",
        "{% for a in messages[1:] %}{{ a.role }}{% endfor %}{% for a in messages[::-1] %}{{ a.role }}{% endfor %}",
        "{% if loop.index0 > messages | length - 2 %}last{% endif %}",
        "{% if '</think>' in m.content and 'tool_calls' not in m %}{{ m.content.split('</think>')[-1] }}{% endif %}",
        "{% if m.role in ['user', 'system'] and m['role'] in x %}{{ m.role }}{% endif %}",
        "{% set ns.index = loop.index %}{{ ns.index }}{{ x.split(',') | reject('equalto', 'a') | join(', ') }}",
        "{% if loop.index % 2 == 1 and m.content is iterable %}{{ loop.index % 2 }}{% endif %}",
        "{{ m.content.strip('\\n') }}{{ m.content | trim }}{{ m.content.strip(x) }}{{ {'a': m.role}['a'] }}",
    ],
)
def test_what_templates_do_is_left_to_minijinja(source: str) -> None:
    assert rendered(source) == [True, True]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'items' in m }}{{ 'items' in m.dict }}",
        "{{ m['items'] is defined }}{{ m.content['upper'] is defined }}",
        "{{ m.get('a', m.missing) }}",
        "{{ m.number in '-3' }}{{ m.missing in 'x' }}",
        "{{ m.half * 2 }}{{ (m.half * 2) | string }}",
        "{{ m.list | map(attribute='type') | list | tojson }}",
        "{% for word in m.content.split() %}{{ word }}|{% endfor %}",
        "{% set z %}{% set y = 1 %}{% endset %}{{ y }}",
        "{% for q in m.none %}{% else %}{% set y = 1 %}{% endfor %}{{ y }}",
        "{% for q in messages %}{% if ns.text %}{% set ns.text = q.content == 'z' %}a{% endif %}{% endfor %}",
        "{{ '\ud800' if m.missing }}",
    ],
)
def test_known_differences_are_left_to_jinja2(source: str) -> None:
    rendered(source)


@pytest.mark.parametrize("end", ["| tojson", "| string", "is iterable", "[1:]"])
def test_sources_do_not_grow_exponentially(end: str) -> None:
    source = f"{{{{ {'(' * 40}messages{f' {end})' * 40} }}}}"
    assert translated(CompiledTemplate(source, VARIABLES), None) is None or end == "[1:]"


def test_a_string_times_a_number_is_left_to_jinja2() -> None:
    """It could be huge, and jinja2 has a bound on it."""
    assert rendered("{{ m.content * 1000 }}") == [False, False]


def test_a_panic_of_minijinja_goes_to_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    class Panicking:
        fuel = 0

        def render_template(self, *_: object, **__: object) -> str:
            raise PanicException

    template = MinijinjaTemplate(CompiledTemplate("{% for m in messages %}{{ m.content }}|{% endfor %}", {}), "stream")
    assert template.rounds(CHATS[1]) == (" x</think>y |z|", [(13, 15)])
    template._environment = Panicking()  # type: ignore[assignment]
    assert template.rounds(CHATS[1]) is None
    monkeypatch.setattr(MinijinjaTemplate, "rounds", lambda *_, **__: None)
    ours = ChatRenderer("{% for m in messages %}{{ m.content }}|{% endfor %}", variables=VARIABLES)
    assert ours.render(CHATS[1].messages).text == " x</think>y |z|"
