"""The lines that a run ends with, where it counts many things."""

from __future__ import annotations

ASKED, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
TEMPLATE = (
    "{% for message in messages %}{{ message.role ~ ': ' ~ message.content ~ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def test_a_summary_has_at_most_twelve_lines(hbpack, tokenizer, lines_of, tmp_path):
    """It has no more of them after the choices, however many things are counted."""
    pairs = [{"prompt": f"{n} and", "chosen": "x", "rejected": "y", "margin": 1} for n in range(9)]
    texts = [{"text": f"{n} <|end|>", "context": n, "history": n} for n in range(60)]
    chats = [
        {"messages": [{"role": "user", "name": "Ada", "content": f"{n}?"}, ANSWER], "label": 1}
        | {"tools": [{"name": "f"}], "answer": n, "functions": [n], "reasons": n}
        for n in range(9)
    ]
    refused = [{"text": ""}, {"messages": [ASKED]}, "bad", {"images": [1], "messages": [ASKED, ANSWER]}]
    file = lines_of({"text": "word " * 3000}, *pairs, *texts, *chats, *refused)
    options = ["--groups", "1k", "--gpus", 1, "--validation", "5%", "--overflow", "truncate", "--seed", 1]
    words = [file, "--chat-template", TEMPLATE, *options, "--tokenizer", tokenizer]
    done = hbpack("pack", *words, "--output", tmp_path / "out")
    assert done.code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) <= 4 + 12, done.stderr
    for text in ("further things that records have; --json counts each", "9 pairs", "validation: planned", "cut off"):
        assert sum(text in line for line in lines) == 1, done.stderr
