"""Whatever decides ids is in the fingerprint of a tokenizer's files; what lies beside them is not."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import pytest

from packer_cli.errors import TokenizerError
from packer_cli.tokens.tokenizer.files import files_of, tokenizer_fingerprint
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

from .conftest import CHATML


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    """Two models."""
    import sentencepiece as library

    folder = tmp_path_factory.mktemp("models")
    (folder / "corpus.txt").write_text("Hello world, how are you?\nThe quick brown fox. 12 x\n" * 30)
    for kind in ("bpe", "unigram"):
        library.SentencePieceTrainer.train(
            input=str(folder / "corpus.txt"), model_prefix=str(folder / kind), model_type=kind,
            vocab_size=60, hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
    return folder


@pytest.fixture
def forms(make_tokenizer_folder, sentencepiece, tmp_path):
    """make(form) -> what to give as --tokenizer; the folder is the test's own."""

    def make(form):
        folder = tmp_path / "tokenizer"
        if form in ("model", "models"):
            folder.mkdir()
            shutil.copy(sentencepiece / "bpe.model", folder / "my.model")
            return folder / "my.model" if form == "model" else folder
        shutil.copytree(make_tokenizer_folder("bytes", eos_token="<|im_end|>", chat_template=CHATML), folder)
        if form == "vocab":
            model = json.loads((folder / "tokenizer.json").read_text())["model"]
            (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
            (folder / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
            return folder / "vocab.json"
        if form == "other":
            return (folder / "tokenizer.json").rename(folder / "20B.json")
        return folder / "tokenizer.json" if form == "file" else folder

    return make


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def normalize(path, new=None):
    """Another tokenizer.json in its place, or in a new one."""
    text = path.read_text(encoding="utf-8")
    assert '"normalizer": null' in text
    (new or path).write_text(text.replace('"normalizer": null', '"normalizer": {"type": "NFC"}'), encoding="utf-8")


def add_tool_template(folder):
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(CHATML.replace("im_end", "endoftext"))
    (folder / "chat_template.jinja").write_text(CHATML)


def add_version(folder):
    normalize(folder / "tokenizer.json", folder / "tokenizer.4.0.json")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["fast_tokenizer_files"] = ["tokenizer.4.0.json"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def fewer_merges(folder):
    (folder / "merges.txt").write_text("\n".join((folder / "merges.txt").read_text().split("\n")[:-20]))


def other_end(folder):
    edit(folder / "tokenizer_config.json", "<|im_end|>", "<s>")


def special_token(folder):
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>"}')


CHANGES = {
    "the folder's tokenizer.json": ("folder", lambda at: normalize(at / "tokenizer.json")),
    "a tokenizer.json": ("file", normalize),
    "a tokenizer.json of another name": ("other", normalize),
    "a sibling": ("other", lambda at: other_end(at.parent)),
    "a chat template": ("folder", lambda at: (at / "chat_template.jinja").write_text("{{ messages }}")),
    "a template for tools": ("folder", add_tool_template),
    "a template for tools beside a file": ("other", lambda at: add_tool_template(at.parent)),
    "tokenizer_config.json": ("folder", other_end),
    "special_tokens_map.json": ("folder", special_token),
    "a version of tokenizer.json": ("folder", add_version),
    "merges.txt": ("vocab", lambda at: fewer_merges(at.parent)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_the_tokenizer_changes_the_fingerprint(forms, what):
    form, change = CHANGES[what]
    where = forms(form)
    before, loaded = tokenizer_fingerprint(str(where)), LoadedTokenizer(str(where)).describe()
    change(where)
    assert LoadedTokenizer(str(where)).describe() != loaded
    assert tokenizer_fingerprint(str(where)) != before


@pytest.mark.parametrize("form", ["model", "models"])
def test_a_sentencepiece_model_of_any_name(forms, sentencepiece, form):
    where = forms(form)
    before, loaded = tokenizer_fingerprint(str(where)), LoadedTokenizer(str(where)).describe()
    shutil.copy(sentencepiece / "unigram.model", where.parent / "my.model" if form == "model" else where / "a.model")
    assert LoadedTokenizer(str(where)).describe() != loaded
    assert tokenizer_fingerprint(str(where)) != before


def test_the_way_it_is_given_counts_where_it_is_another_tokenizer(forms):
    vocab = forms("vocab")
    normalize(vocab.with_name("tokenizer.json"))
    names = [str(vocab), str(vocab.parent), str(vocab.with_name("tokenizer.json"))]
    described = [LoadedTokenizer(name).describe().fingerprint for name in names]
    assert described[0] != described[1] == described[2]
    fingerprints = [tokenizer_fingerprint(name) for name in names]
    assert fingerprints[0] != fingerprints[1] == fingerprints[2]


def test_what_lies_beside_is_not_read(forms):
    where = forms("folder")
    before = tokenizer_fingerprint(str(where))
    for name in (
        "model.safetensors",
        "pytorch_model.bin",
        "model.gguf",
        "README.md",
        "chats.jsonl",
        "data.json",
        "notes.txt",
    ):
        (where / name).write_text("other")
    (where / "broken.model").symlink_to("nowhere")
    assert tokenizer_fingerprint(str(where)) == before
    assert {path.name for path in files_of(where)} == {"tokenizer.json", "tokenizer_config.json"}


def test_a_path_below_home(forms, monkeypatch):
    where = forms("folder")
    monkeypatch.setenv("HOME", str(where.parent))
    before = tokenizer_fingerprint("~/tokenizer")
    assert before == tokenizer_fingerprint(str(where))
    other_end(where)
    assert tokenizer_fingerprint("~/tokenizer") == tokenizer_fingerprint(str(where)) != before


FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def hub(forms, tmp_path, monkeypatch):
    """The Hub's cache with `some/name` at commit FIRST; its folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cache = tmp_path / "hub" / "models--some--name"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(FIRST)
    shutil.copytree(forms("folder"), cache / "snapshots" / FIRST)
    (cache / "snapshots" / FIRST / "config.json").write_text("{}")
    return cache


def test_a_name_on_the_hub_is_what_the_cache_holds_of_it(hub):
    loaded, before = LoadedTokenizer("some/name").describe(), tokenizer_fingerprint("some/name")
    shutil.copytree(hub / "snapshots" / FIRST, hub / "snapshots" / SECOND)
    (hub / "refs" / "main").write_text(SECOND)
    assert tokenizer_fingerprint("some/name") == before  # the same content
    other_end(hub / "snapshots" / SECOND)
    assert LoadedTokenizer("some/name").describe() != loaded
    assert tokenizer_fingerprint("some/name") != before


@pytest.mark.parametrize(
    "name", ["some/name", "other/name", "./nowhere", "no name", "", "n" * 300, "a\0b", "~/nowhere"]
)
def test_what_is_nowhere_is_an_error_at_once(hub, name):
    shutil.rmtree(hub / "snapshots")
    (hub / "snapshots" / FIRST).mkdir(parents=True)
    (hub / "snapshots" / FIRST / "config.json").write_text("{}")  # of the model; it makes no tokenizer
    with pytest.raises(TokenizerError, match="no such file or folder"):
        tokenizer_fingerprint(name)


def test_what_is_fetched_is_fetched_before(hub, monkeypatch):
    """A first run and the next one see the same files."""
    from packer_cli.tokens.tokenizer import files as tokenizer_files

    expected = tokenizer_fingerprint("some/name")
    os.rename(hub, hub.with_name("away"))
    monkeypatch.setattr(tokenizer_files, "load_from_hub", lambda name: os.rename(hub.with_name("away"), hub))
    assert tokenizer_fingerprint("some/name") == expected


def test_the_vocabularies_of_all_classes_are_known(tmp_path):
    """A release of transformers that reads files of other names fails here."""
    import transformers

    root = Path(transformers.__file__).parent
    names = {"tekken.json", "tiktoken.model", "tokenizer.model"}
    for path in [*root.glob("*.py"), *root.glob("models/*/tokenization_*.py")]:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "VOCAB_FILES_NAMES = {" in text else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VOCAB_FILES_NAMES":
                assert isinstance(node.value, ast.Dict)
                names |= {value.value for value in node.value.values if isinstance(value, ast.Constant)}
    assert len(names) > 15
    for name in names:
        (tmp_path / name).touch()
    assert {path.name for path in files_of(tmp_path)} == names
