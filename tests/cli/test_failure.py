"""`--json` of a command that fails: one object, whose schema is published, besides the line on stderr."""

from __future__ import annotations

import json
import os
import subprocess

import jsonschema
import pytest

from packer_cli.cli import status
from packer_cli.cli.failure import describe_failure
from packer_cli.folder_lock import lock_folder
from tests.cli.conftest import GROUPS
from tests.cli_runner import HBPACK
from tests.reference import home


@pytest.fixture
def error_of(hbpack, repo):
    """Run a command with `--json`, which must fail: its exit code and the error, which is that of stderr."""
    schema = json.loads((repo / "schemas" / "error.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)

    def call(*words):
        done = hbpack(*words)
        found = json.loads(done.stdout)
        jsonschema.validate(found, schema)
        assert f"error: {found['error']['message']}" in done.stderr.splitlines()
        return done.code, found["error"]

    return call


def test_an_error_has_kind_path_and_remedy(error_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error_of("stats", "nowhere", "--json") == (
        2,
        {
            "kind": "InputError",
            "message": "'nowhere' does not exist; name a packed data set, a token store or a file of lengths",
            "path": "nowhere",
            "remedy": "name a packed data set, a token store or a file of lengths",
        },
    )


def test_wrong_usage(error_of):
    code, error = error_of("stats", "nowhere", "--jsn", "--json")
    assert (code, error["kind"], error["path"], error["remedy"]) == (2, "UsageError", None, "see hbpack stats --help")


def test_json_in_a_config_file(error_of, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("json: true\n")
    code, error = error_of("stats", tmp_path / "lengths.npy", "--config", config)
    assert (code, error["path"]) == (2, str(tmp_path / "lengths.npy"))


def test_another_run_has_the_folder(error_of, hbpack, chats, tokenizer, tmp_path):
    out = tmp_path / "out"
    words = ("tokenize", chats, "--tokenizer", tokenizer, "--output", out)
    with lock_folder(out):
        code, error = error_of(*words, "--json")
        assert (code, error["kind"], error["path"]) == (os.EX_TEMPFAIL, "BusyError", str(out))
        assert error["remedy"] == "wait until that has ended, or name another folder"
        assert hbpack(*words).stdout == ""


@pytest.mark.parametrize(
    ("error", "code", "kind", "line"),
    [
        (
            OSError(28, "No space left on device", "/data/x"),
            1,
            "OSError",
            "No space left on device (/data/x); make room",
        ),
        (MemoryError(), 1, "MemoryError", "out of memory; close other programs"),
        (KeyboardInterrupt(), 130, "Interrupted", "interrupted"),
    ],
)
def test_other_errors(error_of, monkeypatch, error, code, kind, line):
    def fail(**_):
        raise error

    monkeypatch.setattr(status.command, "callback", fail)
    found, described = error_of("status", "OUT", "--json")
    assert (found, described["kind"]) == (code, kind)
    assert described["message"].startswith(line)
    assert described["path"] == getattr(error, "filename", None)


def test_a_bug_has_json_and_a_traceback(monkeypatch, hbpack):
    def fail(**_):
        raise KeyError("lost")

    monkeypatch.setattr(status.command, "callback", fail)
    printed = []
    monkeypatch.setattr("packer_cli.cli.console.click.echo", printed.append)
    with pytest.raises(KeyError):
        hbpack("status", "OUT", "--json")
    (text,) = printed
    assert json.loads(text)["error"]["kind"] == "KeyError"


def test_a_result_that_is_printed_is_all(hbpack, pack, chats, tmp_path):
    """`hbpack verify` prints what is damaged, and fails."""
    assert pack(chats, *GROUPS).code == 0
    next(home(tmp_path / "out").glob("shards/*/*.arrow")).write_bytes(b"")
    done = hbpack("verify", tmp_path / "out", "--json")
    assert done.code == 1
    assert json.loads(done.stdout)["damaged"]


def test_an_error_where_stdout_is_closed():
    words = [*HBPACK, "stats", "nowhere", "--json"]
    done = subprocess.run(f"{' '.join(words)} >&-", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, [])


@pytest.mark.parametrize(
    ("message", "path", "remedy"),
    [
        ("'s3://b/x' could not be read in 6 tries (OSError: a/b: no); check", "s3://b/x", "check"),
        ("s3://b/x: cannot be read: no; correct it", "s3://b/x", "correct it"),
        ("output folder '/a b/out': '/a b' is a file; name another", "/a b/out", "name another"),
        ("lengths file '/x.txt': value 3 is 'x'; write a length", "/x.txt", "write a length"),
        ("/a/b.jsonl:2: the sample has 9200 tokens, over the largest group's 1024", "/a/b.jsonl", None),
        ("--gpus 8: the largest replicas have 16 GPUs; choose 16 or more", None, "choose 16 or more"),
        ("--loss-on: 'x' is unknown; write '/all'", None, "write '/all'"),
    ],
)
def test_the_parts_of_a_message(message, path, remedy):
    error = describe_failure("InputError", message).error
    assert (error.message, error.path, error.remedy) == (message, path, remedy)
