"""What does not load as a tokenizer says why, in one line."""

import json
import re
import threading
import time

import pytest

from packer_cli.errors import TokenizerError
from packer_cli.tokens.tokenizer import files as tokenizer_files
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer
from tests.cli.errors.conftest import FORMS


def refusal(name):
    with pytest.raises(TokenizerError) as caught:
        LoadedTokenizer(str(name))
    return str(caught.value)


@pytest.mark.parametrize(
    "template",
    [5, 0, True, [1], ["{{ 1 }}"], [{"name": "default"}], [{"name": "default", "template": 7}], {"default": 5}],
)
def test_a_template_that_is_no_text_is_refused(make_tokenizer_folder, template):
    folder = make_tokenizer_folder("bytes", chat_template=template)
    shown = {"default": 7} if template == [{"name": "default", "template": 7}] else template  # as transformers has it
    assert refusal(folder) == (
        f"{folder}: its chat_template is {json.dumps(shown)}; it must be Jinja text, or a list of "
        '{"name": TEXT, "template": TEXT}; correct it in tokenizer_config.json'
    )


def make_broken(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "half.json").write_text('{"version": "1.0", "model": {"type": "BPE"}}')
    (tmp_path / "wrong.json").write_text('{"added_tokens": [], "model": {"type": "BPE"}}')
    for name, text in (("none", "{}"), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)
    (tmp_path / "x.tiktoken").write_text("")
    (tmp_path / "x.model").write_text("not a model")
    (tmp_path / "x.bin").write_text("")
    (tmp_path / "pair").mkdir()
    for name, text in (("vocab.json", "{}"), ("merges.txt", ""), ("tokenizer_config.json", "{")):
        (tmp_path / "pair" / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", ": the folder holds no tokenizer.json; FORMS"),
        ("bad.json", " is not readable JSON (...); FORMS"),
        ("other.json", ": not a tokenizer.json (it has no model); FORMS"),
        ("half.json", ": not a tokenizer.json (it has no added_tokens); FORMS"),
        ("wrong.json", ": cannot be loaded as a tokenizer (...); FORMS"),
        ("none", ": not a tokenizer.json (it has no model and no added_tokens); FORMS"),
        ("none/tokenizer.json", ": not a tokenizer.json (it has no model); FORMS"),
        ("list", ": tokenizer.json is not a JSON object; FORMS"),
        (
            "x.tiktoken",
            (
                ": a .tiktoken file does not say how text is split before merging; give the model's tokenizer.json "
                "instead"
            ),
        ),
        ("x.model", ": cannot be loaded as a tokenizer (...); FORMS"),
        ("x.bin", ": unsupported kind of file; FORMS"),
        ("pair/vocab.json", ": tokenizer_config.json is not readable JSON (...); FORMS"),
        ("missing", ": no such file or folder; FORMS"),
        ("missing/tokenizer.json", ": no such file or folder; FORMS"),
    ],
)
def test_what_cannot_be_loaded_says_so_in_one_line(tmp_path, name, message):
    """`...` stands for the words of a library."""
    make_broken(tmp_path)
    whole = f"{tmp_path / name}{message.replace('FORMS', FORMS)}"
    assert re.fullmatch(re.escape(whole).replace(re.escape("..."), ".+"), refusal(tmp_path / name))


def test_a_tokenizer_in_pure_python_is_refused(make_tokenizer_folder):
    folder = make_tokenizer_folder("bytes", tokenizer_class="ByT5Tokenizer")
    assert refusal(folder) == (
        f"{folder}: ByT5Tokenizer runs in pure Python, but hbpack needs a fast tokenizer; convert it to a "
        "tokenizer.json first"
    )


def test_a_post_processor_that_puts_tokens_inside_a_text_is_refused(make_tokenizer_folder):
    from tokenizers import Tokenizer, processors

    folder = make_tokenizer_folder("bytes")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pairs = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <s> $A", special_tokens=pairs)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert refusal(folder) == (
        f"{folder}: the tokenizer's post-processor does more than put tokens around a text, which hbpack does not "
        "support; give a tokenizer.json without it"
    )


def test_a_hub_name_that_the_hub_does_not_know(monkeypatch):
    """The Hub's client, which is offline here, stands in for its answer."""
    monkeypatch.setattr(tokenizer_files, "can_connect", lambda *_, **__: True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert re.fullmatch(
        r"some/name: no such file or folder, and the Hugging Face Hub has no tokenizer of that name \(.+\); check the "
        "name, or give the folder of a downloaded tokenizer",
        refusal("some/name"),
    )


def test_a_hub_name_without_network_fails_soon(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for key in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(key, raising=False)
    began = time.monotonic()
    unreachable = refusal("some/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = refusal("some-name")
    for text, name, why in (
        (unreachable, "some/name", "127.0.0.1 cannot be reached"),
        (offline, "some-name", "offline mode is on"),
    ):
        assert text == (
            f"{name}: no such file or folder, not in the local Hugging Face cache, and {why}; "
            "give the folder of a downloaded tokenizer"
        )
    assert time.monotonic() - began < 20


def test_a_silent_name_server_is_not_waited_for(monkeypatch):
    silent = threading.Event()

    def connect(*_, **__):
        silent.wait(5)
        raise TimeoutError

    monkeypatch.setattr("socket.create_connection", connect)
    began = time.monotonic()
    assert not tokenizer_files.can_connect("https://example.invalid", timeout=0.1)
    assert time.monotonic() - began < 2
    silent.set()
