"""What a terminal gets of data: no control characters."""

from __future__ import annotations

import ast
from pathlib import Path

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e"
NAME = f"b\nwarning: all is lost\n{ESCAPES}.jsonl"


def obeyed(text: str) -> set[str]:
    """The characters that a terminal would obey, or that begin a line of their own."""
    assert "\nwarning: all is lost" not in text
    return {char for char in text if not char.isprintable()} - {"\n"}


def test_names_and_keys_are_escaped_wherever_they_are_printed(hbpack, tokenizer, lines_of, tmp_path):
    data = lines_of({"text": "fine"}, {ESCAPES: 1}, {"text": "fine"}, name=NAME)
    (tmp_path / f"{ESCAPES}.csv").write_text("x")
    data.with_name(f"copy of {NAME}").write_bytes(data.read_bytes())
    out = tmp_path / f"out{ESCAPES}"
    words = ("--tokenizer", tokenizer, "--groups", "1k", "--gpus", 1, "--workers", 1, "--output", out)
    done = hbpack("pack", tmp_path, *words)
    assert done.code == 0, done.stderr
    assert "are rejected; the first: " in done.stderr
    assert 'has keys "\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\u202e"' in done.stderr
    assert "b\\nwarning: all is lost\\n\\x1b[2J" in done.stderr
    printed = [done.stdout, done.stderr]
    for command in ("stats", "status", "verify", "show"):
        done = hbpack(command, out)
        assert done.code == 0, done.stderr
        printed += [done.stdout, done.stderr]
    printed += [hbpack("pack", tmp_path / NAME / "x", *words).stderr, hbpack("stats", NAME).stderr]
    assert [obeyed(text) for text in printed] == [set()] * len(printed)


def test_only_the_console_prints(repo: Path) -> None:
    """It escapes what it prints; the others print what is safe by itself: the help, JSON, and samples of `show`."""
    found = [
        path.name
        for path in (repo / "packer_cli/cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print")
    ]
    assert set(found) == {"console.py", "command.py", "profile.py", "show.py"}
    assert len(found) - found.count("console.py") == 3
