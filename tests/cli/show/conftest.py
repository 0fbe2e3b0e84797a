"""What the tests of `hbpack show` share: a packed set, its corpus, and reading what was shown."""

from __future__ import annotations

import json
import shutil

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.reference import expected_samples

GPUS = 8
STEP_TOKENS = 6000
"""So that a step has several iterations."""

EVIL = [
    {"messages": [{"role": "user", "content": "\x1b[35mred\x1b[0m \x1b]0;title\x07 [bold]no[/bold] \u202eabc\r"},
                  {"role": "assistant", "content": "a\nmasked  | b\n        | c\ntrained | d\n中文😀 ..."}]},
    {"messages": [{"role": "user", "content": "\n\n"}, {"role": "assistant", "content": "e\t\x00\\n\n"}]},
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(sample, tmp_path_factory):
    """Chats, among them some that would like to command the terminal, and long texts."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:150]
    chats = folder / "chats.jsonl"
    chats.write_text("\n".join([*map(json.dumps, EVIL), *lines]) + "\n", encoding="utf-8")
    texts = folder / "texts.jsonl"
    lines = (sample / "journals.jsonl").read_text(encoding="utf-8").splitlines()[:30]
    texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [chats, texts]


@pytest.fixture(scope="module")
def packed(corpus, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("show") / "out"
    done = run(
        main, "pack", *corpus, "--tokenizer", tokenizer, "--groups", "512:1,2k:4", "--gpus", GPUS, "--global-tokens",
        STEP_TOKENS, "--workers", 1, "-o", folder,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert json.loads((folder / "hbpack.json").read_text())["counts"]["split"] > 0
    return folder


@pytest.fixture
def copy(packed, tmp_path):
    return shutil.copytree(packed, tmp_path / "copy", symlinks=True)


@pytest.fixture(scope="module")
def expected(corpus, tokenizer):
    """Sample id -> (text, [(is trained, text)]) of each record, by transformers alone."""
    from transformers import AutoTokenizer

    hf = AutoTokenizer.from_pretrained(tokenizer)
    found = []
    for ids, mask in expected_samples(corpus, tokenizer):
        runs = []
        begin = 0
        mask = [0, *mask[1:]]  # Nothing predicts a first token.
        for i in range(1, len(ids) + 1):
            if i == len(ids) or mask[i] != mask[begin]:
                runs.append((bool(mask[begin]), hf.decode(ids[begin:i], clean_up_tokenization_spaces=False)))
                begin = i
        found.append((hf.decode(ids, clean_up_tokenization_spaces=False), runs))
    return found


def views_of(folder, *arguments):
    done = run(main, "show", folder, *arguments, "--json")
    assert (done.code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def parse(lines):
    """The samples of the plain output, each a list of (is trained, text): the inverse of what is printed."""
    samples = []
    for line in lines:
        label, bar, text = line[:7], line[7:10], line[10:]
        if line.startswith("-- sample "):
            samples.append([])
        elif bar == " | " and label.strip():
            samples[-1].append((label == "trained", text))
        elif bar == " | ":
            is_trained, before = samples[-1][-1]
            samples[-1][-1] = (is_trained, f"{before}\n{text}")
    return samples


PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"} | {0x202E: "<U+202E>"}
