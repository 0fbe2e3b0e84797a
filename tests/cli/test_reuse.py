"""The same contents under other names or in other inputs: tokens are kept, the output is that of a fresh run."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from packer_cli.tokens import stage
from packer_cli.tokens.stage import library_versions
from tests.reference import current_tree, read_packs, remove_written, store_parts, tree

LONG = ("--groups", "64,256", "--overflow", "drop")  # leaves out some of the samples


@pytest.fixture
def here(sample, tmp_path, monkeypatch):
    """The working directory: a, b and c hold ten chats each, with a broken line in b."""
    folder = tmp_path / "in"
    folder.mkdir()
    with (sample / "chats.jsonl").open(encoding="utf-8") as file:
        for name in "abc":
            text = "".join(next(file) for _ in range(10))
            (folder / f"{name}.jsonl").write_text(text + ("broken\n" if name == "b" else ""), encoding="utf-8")
    (folder / "empty.jsonl").touch()
    monkeypatch.chdir(folder)
    return folder


def times(folder, pattern):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob(pattern)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("[a].jsonl@2", "[bc].jsonl"), ("[ab].jsonl@2", "[c].jsonl")),
        (("a.jsonl", "b.jsonl", "c.jsonl"), ("[abc].jsonl",)),
        (("[abc].jsonl",), (".",)),
        (("a.jsonl", "b.jsonl@0.5"), ("a.jsonl", "empty.jsonl", "b.jsonl@0.5")),
        (("[ab].jsonl",), ("[ab].jsonl@3",)),
        (("[ab].jsonl", *LONG), ("a.jsonl", "b.jsonl", *LONG)),
    ],
)
def test_files_in_other_inputs(pack, here, tmp_path, before, after):
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    assert pack(*before).code == 0
    parts = times(out, "tokens/part-*.arrow")
    assert pack(*after).code == 0
    assert pack(*after, output=fresh).code == 0
    assert current_tree(out) == tree(fresh)
    assert times(out, "tokens/part-*.arrow") == parts
    names = [source["name"] for source in json.loads((out / "hbpack.json").read_text())["sources"]]
    sources = {source for pack in read_packs(out) for source in pack["source_ids"]}
    assert sources == {number for number, name in enumerate(names) if name != "empty.jsonl"}


@pytest.mark.parametrize("options", [(), LONG, ("--overflow", "truncate", "--groups", "64"), ("--no-keep-tokens",)])
def test_files_of_other_names(pack, here, tmp_path, options):
    """The names are in the token store's index, in rejected.jsonl and in hbpack.json, and decide nothing else."""
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    assert pack("a.jsonl", "b.jsonl", *options).code == 0
    arrow = times(out, "**/*.arrow")
    (here / "b.jsonl").rename(here / "other.jsonl")
    done = pack("./a.jsonl", "other.jsonl", *options)
    assert (
        "the plan is up to date\nrejected.jsonl is rewritten\nthe shards are up to date\nhbpack.json " in done.stderr
    )
    assert pack("./a.jsonl", "other.jsonl", *options, output=fresh).code == 0
    assert tree(out) == tree(fresh)
    assert times(out, "**/*.arrow") == arrow
    assert b"other.jsonl" in (out / "rejected.jsonl").read_bytes()
    again = pack("./a.jsonl", "other.jsonl", *options)
    assert again.stderr.endswith("the plan is up to date\nthe shards are up to date\n")


def test_a_rebalanced_set_has_the_new_names(hbpack, pack, here, tmp_path):
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    assert pack("a.jsonl").code == hbpack("rebalance", out, "--gpus", 4).code == 0
    (here / "a.jsonl").rename(here / "b.jsonl")
    assert pack("b.jsonl").stderr.splitlines()[-2] == "the shards are up to date, rebalanced to 4 GPUs"
    assert pack("b.jsonl", output=fresh).code == hbpack("rebalance", fresh, "--gpus", 4).code == 0
    assert tree(out) == tree(fresh)


def manifest_without_checksums(folder):
    """As text; the checksums are those of files with names in them."""
    values = json.loads((folder / "hbpack.json").read_text())
    return json.dumps({key: value for key, value in values.items() if key not in ("rejected", "xxh3")})


def test_a_plan_elsewhere_learns_the_new_names(hbpack, pack, here, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    plan = ("--groups", "2k", "--gpus", 2, "--output", other)
    assert pack("b.jsonl").code == hbpack("plan", out, *plan).code == hbpack("write", other).code == 0
    before = manifest_without_checksums(other)
    (here / "b.jsonl").rename(here / "a.jsonl")
    assert pack("a.jsonl").code == hbpack("plan", out, *plan).code == hbpack("write", other).code == 0
    assert manifest_without_checksums(other) == before.replace('"b.jsonl"', '"a.jsonl"') != before
    assert '"a.jsonl"' in (other / "rejected.jsonl").read_text()
    # Another source is another plan, and so the shards must wait for it.
    assert hbpack("tokenize", "empty.jsonl", "a.jsonl", "--tokenizer", here / "none", "--output", out).code == 2
    assert pack("empty.jsonl", "a.jsonl").code == 0
    assert "up to date" in hbpack("write", other).stderr
    remove_written(other)
    assert "has changed since the plan was made" in hbpack("write", other).stderr


def test_other_weights_wait_for_their_plan(hbpack, pack, here, tokenizer, tmp_path):
    """What the manifest says of the sources is what the plan was made with."""
    out = tmp_path / "out"
    assert pack("a.jsonl").code == 0
    before = (out / "hbpack.json").read_text()
    assert hbpack("tokenize", "a.jsonl@3", "--tokenizer", tokenizer, "--output", out).code == 0
    assert hbpack("write", out).stderr == "the shards are up to date\n"
    assert (out / "hbpack.json").read_text() == before
    remove_written(out)
    assert "has changed since the plan was made" in hbpack("write", out).stderr
    assert pack("a.jsonl@3").code == pack("a.jsonl@3", output=tmp_path / "fresh").code == 0
    assert current_tree(out) == tree(tmp_path / "fresh")


def test_a_tokenizer_of_another_name(pack, here, tokenizer, tmp_path):
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    shutil.copytree(tokenizer, tmp_path / "moved")
    assert pack("a.jsonl").code == 0
    arrow = times(out, "**/*.arrow")
    assert pack("a.jsonl", "--tokenizer", tmp_path / "moved").code == 0
    assert pack("a.jsonl", "--tokenizer", tmp_path / "moved", output=fresh).code == 0
    assert tree(out) == tree(fresh)
    assert times(out, "**/*.arrow") == arrow


def test_a_name_that_says_what_is_inside(pack, here, tmp_path):
    """The same bytes are other records where the name says that they are compressed."""
    data = gzip.compress((here / "a.jsonl").read_bytes())
    (here / "b.jsonl").write_bytes(data)
    (here / "b.jsonl.gz").write_bytes(data)
    assert pack("b.jsonl").code == 1
    assert pack("b.jsonl.gz").code == 0
    assert pack("b.jsonl.gz", output=tmp_path / "fresh").code == 0
    assert current_tree(tmp_path / "out") == tree(tmp_path / "fresh")


TEMPLATE = "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}"


@pytest.mark.parametrize("length", [0, 300, 5000])
def test_a_chat_template_is_text_of_any_length_or_a_file(pack, here, tmp_path, length):
    out = tmp_path / "out"
    text = TEMPLATE + "{#" + "x" * length + "#}"
    done = pack("a.jsonl", "--chat-template", text)
    assert done.code == 0, done.stderr
    parts = times(out, "tokens/part-*.arrow")
    (here / "chat.jinja").write_text(text)
    assert pack("a.jsonl", "--chat-template", "chat.jinja").stderr.endswith("the shards are up to date\n")
    (here / "chat.jinja").write_text(TEMPLATE.replace(": ", "; "))
    assert pack("a.jsonl", "--chat-template", "chat.jinja").code == 0
    assert times(out, "tokens/part-*.arrow") != parts
    assert pack("a.jsonl", "--chat-template", "chat.jinja", output=tmp_path / "fresh").code == 0
    assert current_tree(out) == tree(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("x" * 5000, "cannot be read (File name too long)"),
        ("a\0b", "cannot be read (embedded null byte)"),
        ("nowhere.jinja", "cannot be read (No such file or directory)"),
        ("{{ 1 }}\udcff", "is not UTF-8 text"),
        ("", "is empty"),
    ],
)
def test_what_is_no_chat_template(pack, here, tmp_path, template, reason):
    done = pack("a.jsonl", "--chat-template", template)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: chat template ")
    assert reason in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_template_for_tools(pack, here, tokenizer, tmp_path):
    """It stands in a folder beside the other files."""
    own = shutil.copytree(tokenizer, tmp_path / "tokenizer")
    (own / "chat_template.jinja").write_text(TEMPLATE)
    (own / "additional_chat_templates").mkdir()
    other = own / "additional_chat_templates" / "tool_use.jinja"
    chat = json.loads((here / "a.jsonl").read_text().splitlines()[0])
    tool = {"type": "function", "function": {"name": "f", "description": "g", "parameters": {}}}
    (here / "a.jsonl").write_text(json.dumps({**chat, "tools": [tool]}) + "\n")
    other.write_text(TEMPLATE)
    assert pack("a.jsonl", "--tokenizer", own).code == 0
    other.write_text(TEMPLATE + "{{ eos_token }}")
    assert pack("a.jsonl", "--tokenizer", own).code == 0
    assert pack("a.jsonl", "--tokenizer", own, output=tmp_path / "fresh").code == 0
    assert current_tree(tmp_path / "out") == tree(tmp_path / "fresh")


def changes(done) -> list[str]:
    assert done.code == 0, done.stderr
    return [line.removeprefix("changed: ") for line in done.stderr.splitlines() if line.startswith("changed: ")]


def test_what_differs_is_said_before_work_begins(pack, here, tokenizer, tmp_path, monkeypatch):
    """In one line, with how much is tokenized; nothing where nothing differs."""
    own = shutil.copytree(tokenizer, tmp_path / "tokenizer")
    words = ("--tokenizer", own)
    assert changes(pack(".", *words)) == changes(pack(".", *words)) == []
    size = f"{sum(path.stat().st_size for path in here.glob('*.jsonl')) / 1024:.1f} KiB"
    whole = f"1 of 1 part to tokenize ({size})"
    done = pack(".", *words, "--loss-on", "all", "--plain-content")
    assert changes(done) == [f"--loss-on completion -> all, --plain-content false -> true; {whole}"]
    assert done.stderr.index("changed: ") < done.stderr.index("tokenized 31 records")
    assert changes(pack(".", *words)) == [f"--loss-on all -> completion, --plain-content true -> false; {whole}"]
    assert changes(pack(".", *words, "--chat-template", TEMPLATE)) == [f"the chat template; {whole}"]
    assert changes(pack(".", *words)) == [f"the chat template; {whole}"]
    (own / "tokenizer.json").write_text((own / "tokenizer.json").read_text().replace('"id": 0', '"id":  0'))
    assert changes(pack(".", *words)) == [f"damaged parts, or other files of the tokenizer; {whole}"]
    settings = json.loads((own / "tokenizer_config.json").read_text()) | {"eos_token": "<|pad|>"}
    (own / "tokenizer_config.json").write_text(json.dumps(settings))
    assert changes(pack(".", *words)) == [f"the tokenizer; {whole}"]
    versions = {**library_versions("auto"), "jinja2": "99.0"}
    monkeypatch.setattr(stage, "library_versions", lambda schema: versions)
    old = library_versions("auto")["jinja2"]
    assert changes(pack(".", *words)) == [f"jinja2 {old} -> 99.0; {whole}"]


def test_what_differs_of_the_inputs(pack, here, lines_of, tmp_path):
    texts = [f"{i:02}" + " word" * ((4 << 20) // 500 - 5) for i in range(100)]  # With others over 4 MiB, so in a part
    big = lines_of(*({"text": text} for text in texts), name="in/d.jsonl")  # of its own.
    assert changes(pack(".")) == []
    (here / "b.jsonl").rename(here / "bb.jsonl")
    assert changes(pack(".")) == []
    (here / "a.jsonl").unlink()
    (here / "c.jsonl").write_text((here / "bb.jsonl").read_text() * 2)
    shutil.copy(here / "bb.jsonl", here / "e.jsonl")
    (line,) = changes(pack("."))
    assert line.startswith("1 file added, 1 file removed, 1 file changed; 2 of 3 parts to tokenize (")
    big.unlink()
    (line,) = changes(pack("."))
    assert line.startswith("1 file removed; 1 of 1 part to tokenize (")
    (line,) = changes(pack("./c.jsonl", "./e.jsonl", "./bb.jsonl"))
    assert line.startswith("the order of files; 1 of 1 part to tokenize (")
    (part,) = store_parts(tmp_path / "out")
    part.write_bytes(part.read_bytes()[:-1])
    (line,) = changes(pack("./c.jsonl", "./e.jsonl", "./bb.jsonl"))
    assert line.startswith("damaged parts, or other files of the tokenizer; 1 of 1 part to tokenize (")
