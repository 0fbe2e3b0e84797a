"""`--chat-template NAME`: the text of the model's own template, and what of it the assistant generates."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.cli.main import main
from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.tokenizer.loading import NAMED, LoadedTokenizer, read_named, read_template
from tests.cli_runner import run
from tests.reference import current_tree
from tests.tokens.helpers import turns, way_of
from tests.tokens.published_templates import PUBLISHED

SPECIALS = {
    "gemma3": ("<bos>", "<eos>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>"),
    "phi3": ("<s>", "<|endoftext|>"),
}


def official(name):
    """The model's own template, as TRL has it for comparing; ChatML and Mistral's are not among them."""
    if name in ("chatml", "mistral"):
        return PUBLISHED[name][0]
    trl = pytest.importorskip("trl.chat_template_utils")
    return (Path(trl.__file__).parent / "chat_templates" / f"{name.replace('.', '_')}.jinja").read_text("utf-8")


@pytest.fixture(scope="module")
def renderers():
    """name -> renderers of the named template and of the official one."""

    def make(name):
        bos, eos = SPECIALS.get(name, ("<|endoftext|>", "<|im_end|>"))
        variables = {"bos_token": bos, "eos_token": eos}
        return [
            ChatRenderer(template, variables=variables, special_tokens=(*NAMED[name], bos, eos))
            for template in (read_named(name), official(name))
        ]

    made = {}
    return lambda name: made.setdefault(name, None) or made.__setitem__(name, make(name)) or made[name]


def rendered(renderer, messages, tools=None):
    try:
        return renderer.render(messages, tools)
    except TemplateRejectError:
        return None


TEXT = st.text("ab \n<>{}'\"é|你[]/", max_size=8)
QUESTION = st.builds(lambda content: {"role": "user", "content": content}, TEXT)
ANSWER = st.builds(lambda content: {"role": "assistant", "content": content}, TEXT)
SYSTEM = st.builds(lambda content: {"role": "system", "content": content}, TEXT)
PLAIN = st.builds(
    lambda system, pairs, end: [*system, *(turn for pair in pairs for turn in pair), *end],
    st.lists(SYSTEM, max_size=1),
    st.lists(st.tuples(QUESTION, ANSWER), min_size=1, max_size=3),
    st.lists(QUESTION, max_size=1),
)
CALL = st.builds(
    lambda name, text: {"type": "function", "function": {"name": name, "arguments": {"word": text}}},
    st.sampled_from(["look_up", "add"]),
    TEXT,
)
THOUGHT = st.builds(
    lambda content, thought, how: (
        {"role": "assistant", "content": content, "reasoning_content": thought}
        if how
        else {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n{content}"}
    ),
    TEXT,
    TEXT,
    st.booleans(),
)
CALLING = st.builds(
    lambda content, calls: {"role": "assistant", "content": content, "tool_calls": calls},
    TEXT,
    st.lists(CALL, min_size=1, max_size=2),
)
RESPONSE = st.builds(lambda content: {"role": "tool", "content": content}, TEXT)
ANY = st.builds(
    lambda system, question, rest: [*system, question, *rest],
    st.lists(SYSTEM, max_size=1),
    QUESTION,
    st.lists(st.one_of(QUESTION, ANSWER, THOUGHT, CALLING, RESPONSE), max_size=6),
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "required": []}},
    }
]
WITH_TOOLS = ["llama3.1", "qwen2.5", "qwen3"]


@pytest.mark.parametrize("name", NAMED)
def test_plain_chats_give_the_same_text_and_ranges(renderers, name):
    ours, official = renderers(name)
    assert way_of(ours) == "tags"
    assert way_of(official) == "loops"
    held = 0

    @given(messages=PLAIN)
    def check(messages):
        nonlocal held
        if name == "mistral" and messages[0]["role"] == "system" and messages[-1]["role"] != "user":
            # The official one forgets the system prompt here.
            messages = messages[1:]
        expected = rendered(official, messages)
        found = rendered(ours, messages)
        assert (found and found.text) == (expected and expected.text)
        if found:
            # Empty answers have no range in one of the ways.
            assert [span for span in found.spans if span in expected.spans] == found.spans
            held += len(found.spans)

    check()
    assert held > 20


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_tools_and_reasoning_give_the_same_text(renderers, name, tools):
    ours, official = renderers(name)
    held = 0

    @given(messages=ANY)
    def check(messages):
        nonlocal held
        expected, found = rendered(official, messages, tools), rendered(ours, messages, tools)
        assert (found and found.text) == (expected and expected.text)
        held += found is not None

    check()
    assert held > 20


def test_the_system_prompt_of_mistral_stays_where_an_answer_follows(renderers):
    ours, official = renderers("mistral")
    system = {"role": "system", "content": "Be brief."}
    messages = [system, *turns("Hi", "Hello", "One", "Two")]
    assert ours.render(messages).text == "<s>[INST] Hi[/INST] Hello</s>[INST] Be brief.\n\nOne[/INST] Two</s>"
    asked = official.render(messages[:-1]).text
    assert ours.render(messages[:-1]).text == asked
    assert ours.render(messages).text.startswith(asked)
    for wrong in ([*turns("a"), {"role": "assistant", "content": "", "tool_calls": [{}]}], turns("a", "b")[::-1]):
        assert rendered(ours, wrong) is None
    assert rendered(ours, turns("a", "b"), TOOLS) is None


@pytest.mark.parametrize("name", NAMED)
def test_a_generation_prompt_begins_the_answer(renderers, name):
    """What a model sees when it is asked is what it was trained on."""
    for renderer in renderers(name):
        asked = renderer.prompt(renderer.read(turns("Hi")))
        answered = renderers(name)[0].render(turns("Hi", "Hello"))
        assert answered.text.startswith(asked)
        assert answered.text[answered.spans[0][0] :].strip().startswith(("Hello", "<think>"))


@pytest.fixture
def with_tokens(make_tokenizer_folder, tmp_path):
    """A tokenizer with these tokens added."""

    def make(*tokens):
        from tokenizers import AddedToken, Tokenizer

        tokenizer = Tokenizer.from_file(str(make_tokenizer_folder("bytes") / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return str(tmp_path)

    return make


@pytest.mark.parametrize("name", NAMED)
def test_a_tokenizer_must_have_the_tokens(with_tokens, name):
    *some, last = NAMED[name]
    if last not in ("<|im_end|>", "</s>", "<|endoftext|>"):
        folder = with_tokens(*some)
        with pytest.raises(TokenizerError) as error:
            LoadedTokenizer(folder, chat_template=name)
        assert str(error.value) == (
            f"--chat-template {name} writes {last}, which is not a token of {folder}; add it to the tokenizer and the "
            "model, or choose another template"
        )
    loaded = LoadedTokenizer(with_tokens(*NAMED[name]), chat_template=name)
    assert loaded.chat_template == read_named(name)
    text = ChatRenderer(loaded.chat_template, variables={}).render(turns("Hi", "Hello")).text
    ids = loaded.hf(text, add_special_tokens=False)["input_ids"]
    written = [token for token in NAMED[name] if token in text]
    assert {loaded.added_tokens[token] for token in written} <= set(ids)


def test_a_file_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_template("chatml") == read_named("chatml")
    Path("chatml").write_text("{{ messages }}")
    assert read_template("chatml") == "{{ messages }}"
    os.remove("chatml")
    with pytest.raises(TokenizerError) as error:
        read_template("chatlm")
    assert str(error.value) == (
        "chat template 'chatlm' cannot be read (No such file or directory); give the path of a Jinja file, Jinja text "
        f"with {{% or {{{{ in it, or one of {', '.join(NAMED)}"
    )


def test_a_packed_set_keeps_the_template(with_tokens, tmp_path, monkeypatch):
    """`append` gives the bytes of packing everything together, also where the name has become that of a file."""
    tokenizer = with_tokens(*NAMED["chatml"])
    for name in ("old", "new"):
        record = json.dumps({"messages": turns(f"What is {name}?", "This.")})
        (tmp_path / f"{name}.jsonl").write_text(record + "\n")

    def pack(out, template, *names):
        inputs = [tmp_path / f"{name}.jsonl" for name in names]
        options = ("--tokenizer", tokenizer, "--chat-template", template, "--groups", "64", "--gpus", 1)
        return run(main, "pack", *inputs, *options, "--workers", 1, "--output", tmp_path / out)

    done = pack("out", "chatml", "old")
    assert done.code == 0, done.stderr
    assert "template   chatml, for Alpaca records too" in done.stderr.splitlines()
    assert pack("both", "chatml", "old", "new").code == 0
    assert pack("text", read_named("chatml"), "old", "new").code == 0
    monkeypatch.chdir(tmp_path)
    Path("chatml").write_text("{{ messages }}")
    done = run(main, "append", "out", tmp_path / "new.jsonl", "--workers", 1)
    assert done.code == 0, done.stderr
    assert current_tree(tmp_path / "out") == current_tree(tmp_path / "both") == current_tree(tmp_path / "text")


def test_the_help_and_the_package_have_every_name(repo):
    from packer_cli.config import TokenizeConfig

    text = TokenizeConfig.model_fields["chat_template"].description
    *names, last = NAMED
    assert f"The names are {', '.join(names)} and {last}." in " ".join(text.split())
    files = {path.stem for path in (repo / "packer_cli" / "tokens" / "templates" / "jinja").glob("*.jinja")}
    assert files == set(NAMED)
    schema = json.loads((repo / "schemas" / "config.schema.json").read_text())
    assert all(name in json.dumps(schema) for name in NAMED)
