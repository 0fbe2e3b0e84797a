"""Code that lies beside a tokenizer or a model never runs, whoever says yes."""

import ast
import io
import json
import shutil
import subprocess

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import HBPACK, Done, run

CODE = """
from transformers import PreTrainedTokenizerFast
open({ran!r}, "w").write("ran")
class Own(PreTrainedTokenizerFast): pass
"""


@pytest.fixture
def ran(tmp_path):
    return tmp_path / "ran"


@pytest.fixture
def folder(repo, tmp_path, ran):
    """A tokenizer whose config names a class in a file beside it, which leaves a trace when it is imported."""
    folder = tmp_path / "tokenizer"
    shutil.copytree(repo / "examples" / "sample" / "tokenizer", folder)
    file = folder / "tokenizer_config.json"
    config = {**json.loads(file.read_text()), "tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own"] * 2}}
    file.write_text(json.dumps(config))
    (folder / "own.py").write_text(CODE.format(ran=str(ran)))
    return folder


@pytest.fixture(params=["here", "processes"])
def tokenize(request, folder, tmp_path, monkeypatch):
    """`hbpack tokenize` with this tokenizer, of somebody who says yes: with one worker, here, and with two."""
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n' * 2)
    words = ["tokenize", tmp_path / "in.jsonl", "--tokenizer", folder, "-o", tmp_path / "out", "--workers"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 99))

    def call():
        if request.param == "here":
            return run(main, *words, 1)
        done = subprocess.run([*HBPACK, *words, "2"], input="y\n" * 99, capture_output=True, text=True)
        return Done(done.returncode, done.stdout, done.stderr)

    return call


def test_code_of_a_tokenizer_never_runs(folder, ran, tokenize):
    message = (
        f"error: {folder}: its config names Python code to load it with (auto_map), but hbpack never runs a "
        "tokenizer's code; remove auto_map from a copy of the folder to use its tokenizer.json as it is\n"
    )
    assert tokenize() == (2, "", message)
    assert not ran.exists()


@pytest.mark.parametrize("tokenize", ["here"], indirect=True)
def test_a_model_config_beside_it_asks_for_no_code_either(folder, ran, tokenize):
    """With a known tokenizer class, transformers looks at config.json too."""
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "tokenizer_config.json"
    named = {**json.loads(file.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    del named["auto_map"]
    file.write_text(json.dumps(named))
    done = tokenize()
    assert done.code == 0
    assert "custom code" not in done.stderr
    assert not ran.exists()


def test_every_call_of_transformers_says_so(repo):
    """A call that leaves it out asks on stdin, and `yes |` answers."""
    calls = []
    for path in sorted((repo / "packer_cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            if name in ("from_pretrained", "from_config"):
                said = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
                calls.append((f"{path.name}:{node.lineno}", said.get("trust_remote_code")))
    assert len(calls) >= 3
    assert [where for where, said in calls if said is not False] == []
