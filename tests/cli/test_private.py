"""What a terminal gets of data: no control characters, and no texts of records that were rejected."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

M = "Jane Roe\n4711"
"""A text that nobody but the owner of the data may see."""
USER, ANSWER = {"role": "user", "content": M}, {"role": "assistant", "content": M}
TEXTS = {"prompt": M, "chosen": M, "rejected": M}


def chat(*turns: Any, **others: Any) -> dict[str, Any]:
    return {"messages": [*turns], **others}


def changed(record: Any, value: Any) -> list[Any]:
    """The record with each value of any depth replaced in turn."""
    if isinstance(record, dict):
        return [record | {key: new} for key in record for new in [value, *changed(record[key], value)]]
    if isinstance(record, list):
        return [
            [*record[:i], new, *record[i + 1 :]]
            for i in range(len(record))
            for new in [value, *changed(record[i], value)]
        ]
    return []


CALL = {"role": "assistant", "content": M, "tool_calls": [{"function": {"name": M, "arguments": {"x": M}}}]}
WHOLE = [
    chat(USER, ANSWER, system=M, tools=[{"function": {"name": M, "parameters": {"type": M}}}]),
    chat({"role": "user", "content": [{"type": "text", "text": M}]}, CALL, {"role": "tool", "content": M}, ANSWER),
    chat(USER, ANSWER | {"weight": 1, "loss_scale": 1, "train": True, "reasoning_content": M}),
    {"conversations": [{"from": "human", "value": M}, {"from": "gpt", "value": M, "weight": 1}], "system": M},
    {"conversations": [{"from": "human", "value": M}, {"from": "function_call", "value": M}]},
    {"instruction": M, "input": M, "output": M, "system": M, "history": [[M, M]]},
    {"prompt": M, "completion": M, "weight": 1.0, "label": True},
    {"prompt": [USER], "completion": [ANSWER]},
    {"text": M, "weight": 1.0, "images": []},
    TEXTS | {"margin": 1.0, "ref_chosen_logps": 1.0, "ref_rejected_logps": 1.0},
    {"prompt": [USER], "chosen": [ANSWER], "rejected": [ANSWER]},
    {"prompt": M, "completions": [M, M], "rewards": [1.0, 2.0], "weights": [1.0, 1.0]},
    {"input_ids": [1, 2], "labels": [1, 2], "loss_mask": [1, 1], "position_ids": [0, 1], "weight": 1.0},
    {M: 1, "note": M},
]
"""A record of each shape, with whatever it may have; the last has none."""
VALUES = [M, [M], {"x": M}, {M.split()[0].lower() + "_": M}, 5, None, "", [], True]
BROKEN = [f'{{"text": "{M}', f'["{M}"]', f'"{M}"', f'{{"text": "{M.split()[0]} \\ud800"}}', f'{{"{M}": NaN}}']
TEMPLATE = """
{%- for m in messages %}
{%- if m.role == 'user' and not loop.first %}{{ raise_exception('no ' + m.content + ' of ' + m.role) }}{% endif %}
{%- if m.content is not string %}{{ m.content | int(base=m.content) }}{% endif -%}
<{{ m.role }}>{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call.function.name + call.function.arguments }}{% endfor %}</s>
{%- endfor %}"""


def private(text: str) -> bool:
    return "Jane" not in text and "Roe" not in text and "4711" not in text


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["of the tokenizer", "that raises"])
def test_no_reason_quotes_a_text_of_its_record(hbpack, tokenizer, lines_of, tmp_path, template):
    records = [record for whole in WHOLE for value in VALUES for record in changed(whole, value)]
    records = [record for record in records if "\n" not in "".join(map(str, record))]  # Keys are named.
    lines = [*records, *(line.replace("\n", " ") for line in BROKEN), chat(USER, ANSWER, USER, ANSWER)]
    options = () if template is None else ("--chat-template", template)
    done = hbpack(
        "tokenize", lines_of(*lines), "--tokenizer", tokenizer, "--output", tmp_path / "out", "--workers", 1, *options
    )
    assert done.code == 0, done.stderr
    (path,) = (tmp_path / "out" / "tokens").glob("rejected-*.jsonl")
    reasons = [json.loads(line)["reason"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(reasons) > 300
    assert len(set(reasons)) > 100
    assert [reason for reason in reasons if not private(reason)] == []
    assert private(done.stdout)
    assert private(done.stderr)


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
    """It and the log escape their lines; the others print what is safe: the help, JSON, and samples of `show`."""
    found = [
        path.name
        for path in (repo / "packer_cli/cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print")
    ]
    assert set(found) == {"console.py", "log.py", "command.py", "show.py"}
    assert len(found) - found.count("console.py") == 4
