"""Lines on stderr: with time and level where `--log-format` asks for them, and progress where there is no bar."""

from __future__ import annotations

import json
import re
import time

import pytest

from packer_cli.cli import log
from packer_cli.cli.console import show_progress
from packer_cli.engine.progress import naming, progress_bar
from tests.cli.test_robust import on_a_terminal
from tests.cli_runner import HBPACK

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(log, "PROGRESS_SECONDS", 0.02)
    monkeypatch.setattr(log.LINES, "form", None)
    show_progress()


def test_lines_as_text_have_time_and_level(pack, chats, lines_of, tmp_path):
    with_reject = lines_of({"text": "good"}, "broken")
    plain = pack(chats, with_reject, output=tmp_path / "plain").stderr
    lines = pack(chats, with_reject, "--log-format", "text", output=tmp_path / "timed").stderr.splitlines()
    found = [re.fullmatch(rf"{TIME} ([A-Z]+) (.+)", line) for line in lines]
    assert {match[1] for match in found} == {"INFO", "WARNING"}
    shown = [match[2] if match[1] == "INFO" else f"{match[1].lower()}: {match[2]}" for match in found]
    without_seconds = [re.sub(r"[\d.]+ s\b|timed|plain", "", "\n".join(text)) for text in (shown, plain.splitlines())]
    assert without_seconds[0] == without_seconds[1]


def test_lines_as_json(pack, chats, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("log-format: json\n")
    for words in (("--log-format=json",), ("--config", config)):
        done = pack(chats, "--gpus", 3, "--groups", "1k:2", *words)
        assert done.code == 2
        *_, last = [json.loads(line) for line in done.stderr.splitlines()]
        assert (list(last), last["level"]) == (["time", "level", "message"], "error")
        assert re.fullmatch(TIME, last["time"])


def test_a_wrong_option_is_told_in_the_format(hbpack):
    done = hbpack("stats", "--nope", "--log-format", "json")
    assert json.loads(done.stderr)["message"].startswith("no such option '--nope'")
    assert hbpack("stats", "--nope").stderr.startswith("error: no such option '--nope'")  # It is not kept.
    assert "'xml' is not one of 'text', 'json'" in hbpack("stats", ".", "--log-format", "xml").stderr


def test_a_terminal_sees_lines_that_are_asked_for(pack, chats, tmp_path):
    assert pack(chats).code == 0
    seen = on_a_terminal(
        [*HBPACK, "verify", str(tmp_path / "out"), "--fast", "--workers", "1", "--log-format", "json"]
    )
    assert all(json.loads(line) for line in seen.splitlines())
    assert "\x1b" not in seen


@pytest.mark.usefixtures("often")
def test_progress_is_said_without_a_terminal(capsys):
    with naming("validation"), progress_bar("Writing", unit="tokens") as progress:
        time.sleep(0.05)
        progress(1_000_000, 5_000_000)  # An earlier run has done so much.
        progress(2_000_000, 5_000_000)
        time.sleep(0.05)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"validation: Writing: 0\.0\d+ s so far", first)
    found = re.fullmatch(
        r"validation: Writing: 2\.00M tokens of 5\.00M tokens \(40%\), (.+)M tokens/s, (.+) s left", last
    )
    assert 3 / float(found[1]) == pytest.approx(float(found[2]), rel=0.02)  # 3 million tokens are left.


@pytest.mark.usefixtures("often")
def test_progress_as_json(capsys, monkeypatch):
    monkeypatch.setattr(log.LINES, "form", "json")
    with progress_bar("Tokenizing") as progress:
        progress(0, 3 << 20)
        time.sleep(0.03)
        progress(1 << 20, 3 << 20)
        time.sleep(0.03)
    first, *_, last = map(json.loads, capsys.readouterr().err.splitlines())
    facts = {"stage": "Tokenizing", "unit": "bytes", "total": 3 << 20}
    assert first.items() >= {**facts, "done": 0, "seconds_left": None}.items()
    assert last.items() >= {**facts, "done": 1 << 20}.items()
    assert last["seconds_left"] >= last["seconds"]
    assert last["message"].startswith("Tokenizing: 1.0 MiB of 3.0 MiB (33%), ")


def test_short_work_says_no_progress(pack, chats):
    assert "Tokenizing" not in pack(chats).stderr
