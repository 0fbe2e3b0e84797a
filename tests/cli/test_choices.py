"""What a run says that it chose, and what comes of it: EOS, Alpaca's form, reuse, rejects."""

from __future__ import annotations

import datetime
import json
import re
import shutil

import pytest

from packer_cli.corpus.records.texts import PROMPT_WITH_INPUT
from tests.cli.conftest import rejected
from tests.reference import read_rows, store_parts, tree

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
ALPACA = {"instruction": "Add.", "input": "1 2", "output": "3"}
PAIR = {"prompt": "1 + 1 =", "completion": " 2"}
TEXT = {"text": "A text."}
IDS = {"input_ids": [5, 6, 7]}
NO_TOOLS = (
    "{% for message in messages %}{{ message.role ~ ': ' ~ message.content ~ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
RECORDS = (CHAT, CHAT, ALPACA, PAIR, TEXT, IDS)


@pytest.fixture
def hf(tokenizer):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer)


@pytest.fixture
def tokenize(hbpack, tokenizer, tmp_path):
    def call(*arguments):
        words = ("--tokenizer", tokenizer, "--workers", 1, "--output", tmp_path / "out")
        return hbpack("tokenize", *words, *arguments)

    return call


def lines_without_seconds(done):
    return re.sub(r"\([0-9.]+ s\)", "(# s)", done.stderr).splitlines()


def samples(folder):
    rows = [row for path in store_parts(folder) for row in read_rows(path)]
    return [row["input_ids"] for row in rows]


def test_the_choices_and_what_came_of_them(tokenize, lines_of, tokenizer, tmp_path):
    path = lines_of(*RECORDS)
    done = tokenize(path)
    choices = [
        f"tokenizer  {tokenizer}, run by gigatoken",
        "template   the tokenizer's own (tokenizer_config.json), for Alpaca records too",
        "loss       on assistant turns, completions and plain texts",
        "EOS        <|end|> after completions, texts and chats that are left open",
    ]
    num_tokens = sum(map(len, samples(tmp_path / "out")))
    shapes = "2 messages, 1 alpaca, 1 prompt-completion, 1 text, 1 pre-tokenized"
    result = f"6 samples ({shapes}), {num_tokens} tokens, 0 rejected (# s)"
    ends = (
        "1 of 6 samples ends without EOS or an end of turn: pre-tokenized records, and chats in which the assistant "
        "does not speak last, stay as they are"
    )
    assert lines_without_seconds(done) == [*choices, f"tokenized 6 records: {result}", ends]
    again = tokenize(path)
    assert lines_without_seconds(again) == [*choices, f"reused 6 tokenized records: {result}", ends]
    more = lines_of(
        "bad", {"text": "A long text. " * 400_000}, name="more.jsonl"
    )  # Large files are parts of their own.
    partly = lines_without_seconds(tokenize(path, more))
    assert partly[:4] == choices
    assert partly[4] == "changed: 1 file added; 1 of 2 parts to tokenize (5.0 MiB)"
    assert partly[5].startswith("tokenized 2 records and reused 6: 7 samples (2 messages, 2 text, 1 alpaca, ")
    index = json.loads((tmp_path / "out" / "tokens" / "tokens.json").read_text())
    assert (index["tokenizer"]["backend"], index["tokenizer"]["eos_token"]) == ("gigatoken", "<|end|>")
    assert index["parts"][0]["shapes"] == {"alpaca": 1, "messages": 2, "prompt-completion": 1, "text": 1, "tokens": 1}
    assert index["parts"][1]["shapes"] == {"text": 1}
    assert [part["num_open"] for part in index["parts"]] == [1, 0]


@pytest.mark.parametrize(
    ("options", "row", "ends"),
    [
        (
            ("--append-eos", "never"),
            "EOS        never added",
            "4 of 6 samples end without EOS or an end of turn: --append-eos never",
        ),
        (
            ("--append-eos", "always"),
            "EOS        <|end|> after every sample",
            "every sample ends with EOS or an end of turn",
        ),
    ],
)
def test_other_rules_for_eos(tokenize, lines_of, tmp_path, options, row, ends):
    records = (CHAT, PAIR, TEXT, {"text": "b c"}, IDS, CHAT)
    done = tokenize(lines_of(*records), *options)
    assert (done.stderr.splitlines()[3], done.stderr.splitlines()[-1]) == (row, ends)
    before = tree(tmp_path / "out")
    changed, made = tokenize(lines_of(*records)).stderr.splitlines()[4:6]
    assert changed.startswith(f"changed: --append-eos {options[1]} -> auto; 1 of 1 part to tokenize (")
    assert made.startswith("tokenized 6 ")  # Not reused.
    assert samples(tmp_path / "out")[1:4] != [None] * 3
    assert tokenize(lines_of(*records), *options).code == 0
    assert tree(tmp_path / "out") == before


ASKED = {"messages": CHAT["messages"][:1]}


def test_samples_without_a_loss(hbpack, tokenize, lines_of, tmp_path):
    path = lines_of(CHAT, ASKED, {**CHAT, "weight": 0}, TEXT, "bad", IDS)
    done = tokenize(path, "--max-rejected", 1, "--json")
    assert done.code == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["num_samples"], record["num_rejected"], record["num_without_loss"]) == (3, 3, 2)
    assert "34 tokens, 3 rejected, 2 of them without loss tokens with --loss-on completion (" in done.stderr
    reason = "it has no loss tokens, so a model would learn nothing from it"
    assert [each[1:] for each in rejected(tmp_path / "out") if each[1] != 5] == [(2, reason), (3, reason)]
    planned = hbpack("plan", tmp_path / "out", "--groups", "1k", "--gpus", 1)
    assert planned.code == 0
    lines = [line.split() for line in hbpack("stats", tmp_path / "out").stdout.splitlines()]
    assert ["records", "without", "loss", "2"] in lines
    none = tokenize(lines_of(CHAT, ASKED, name="chats.jsonl"), "--loss-on", "tool-calls")
    assert none.code == 1
    assert none.stderr.splitlines()[-1] == (
        "error: no record has loss tokens with --loss-on tool-calls (--loss-on all trains on every token), see "
        f"'{tmp_path}/out/rejected.jsonl'"
    )


def test_what_is_not_used_is_said_once(tokenize, lines_of, tmp_path):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    records = [
        {**CHAT, "tools": tools, "functions": []},
        {**CHAT, "tools": tools, "functions": tools},
        {**CHAT, "images": ["a.png"]},
        {**PAIR, "tools": tools, "label": True},
        {**PAIR, "label": False},
    ]
    more = lines_of({"text": "A long text. " * 400_000, "label": 1}, name="more.jsonl")  # A part of its own.
    done = tokenize(lines_of(*records), more, "--chat-template", NO_TOOLS)
    assert done.code == 0
    expected = {
        '1 record has "functions", which hbpack does not use (it reads "tools")',
        '1 record has "label", which hbpack does not use',
        '1 record has "tools", which have no place in a prompt that is a string',
        '2 records have "tools", which the chat template does not write',
    }
    assert [line for line in done.stderr.splitlines() if "warning" in line and "rejected" not in line] == [
        f"warning: {text}" for text in sorted(expected, key=lambda text: (-int(text[0]), text[2:].split('"')[1:]))
    ]
    assert [line for _, line, _ in rejected(tmp_path / "out")] == [3, 5]
    again = tokenize(lines_of(*records), more, "--chat-template", NO_TOOLS)
    assert lines_without_seconds(again)[4:-4] == lines_without_seconds(done)[4:-4]


def test_pieces_without_a_loss(hbpack, tokenize, lines_of, tmp_path):
    long = {"prompt": "A long prompt. " * 200, "completion": "Yes."}
    path = lines_of(TEXT, long, long)
    assert tokenize(path).code == 0
    for overflow, count in (("split", 16), ("truncate", 2), ("drop", 0)):
        done = hbpack("plan", tmp_path / "out", "--groups", "256", "--gpus", 1, "--overflow", overflow, "--json")
        found = json.loads(done.stdout)["counts"]["pieces_without_loss"]
        assert found == count, done.stderr
        note = (
            f"{count} pieces of cut samples have no loss tokens, so a model learns nothing from them; the first is "
            f"tokens 0 to 255 of {path}:2; cut fewer samples with longer --groups, or leave them out with --overflow "
            "drop"
        )
        assert (note in done.stderr.splitlines()) == (count > 0)
        if overflow == "truncate":  # What is cut off is in no count.
            assert hbpack("write", tmp_path / "out").code == 0
            done = hbpack("verify", tmp_path / "out")
            assert done.code == 0, done.stderr


def test_one_piece_without_a_loss_is_named(hbpack, tokenize, lines_of, tmp_path):
    path = lines_of(TEXT, {"prompt": "A long prompt. " * 25, "completion": "Yes."})
    assert tokenize(path).code == 0
    done = hbpack("plan", tmp_path / "out", "--groups", "200", "--gpus", 1)
    (note,) = (line for line in done.stderr.splitlines() if "no loss tokens" in line)
    assert note == (
        f"1 piece of cut samples has no loss tokens, so a model learns nothing from it; it is tokens 0 to 199 of "
        f"{path}:2; cut fewer samples with longer --groups, or leave them out with --overflow drop"
    )


def test_a_tokenizer_without_eos(tokenize, lines_of, tokenizer, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(tokenizer / "tokenizer.json", bare)
    refused = (
        "error: texts, completions and chats that the template leaves open end with EOS, and the tokenizer has none; "
        "name a token of its vocabulary with --eos-token TOKEN, or leave them open with --append-eos never\n"
    )
    for records in ([TEXT], [ALPACA], [PAIR], [IDS, TEXT]):
        done = tokenize(lines_of(*records), "--tokenizer", bare)
        assert (done.code, done.stderr.splitlines()[-1] + "\n") == (2, refused)
        assert not (tmp_path / "out").exists()
    done = tokenize(lines_of(IDS), "--tokenizer", bare)
    assert done.stderr.splitlines()[1::2][:2] == [
        "template   none; Alpaca records take Stanford's prompt",
        "EOS        none: the tokenizer has no EOS token",
    ]
    shutil.rmtree(tmp_path / "out")
    done = tokenize(lines_of(ALPACA, PAIR, TEXT), "--tokenizer", bare, "--append-eos", "never")
    assert done.stderr.splitlines()[-1] == ("3 of 3 samples end without EOS or an end of turn: --append-eos never")
    done = tokenize(lines_of(ALPACA, PAIR, TEXT), "--tokenizer", bare, "--eos-token", "<|end|>")
    assert done.stderr.splitlines()[3] == "EOS        <|end|> after completions, texts and chats that are left open"
    assert done.stderr.splitlines()[-1] == "every sample ends with EOS or an end of turn"
    named = samples(tmp_path / "out")
    done = tokenize(lines_of(ALPACA, PAIR, TEXT), "--alpaca", "stanford", "--chat-template", "{{ messages }}")
    assert samples(tmp_path / "out") == named  # The tokenizer's folder names the same one.
    shutil.rmtree(tmp_path / "out")
    message = (
        "error: --append-eos always needs an EOS token, and the tokenizer has none; name a token of its vocabulary "
        "with --eos-token TOKEN\n"
    )
    assert tokenize(lines_of(TEXT), "--tokenizer", bare, "--append-eos", "always") == (2, "", message)
    assert tokenize(lines_of(TEXT), "--tokenizer", bare, "--alpaca", "template").stderr.splitlines()[-1] == (
        "error: --alpaca template needs a chat template, and the tokenizer has none; give one with --chat-template "
        "(a Jinja file, or a name such as chatml), or choose --alpaca stanford"
    )
    assert not (tmp_path / "out").exists()


def test_alpaca_takes_the_template_or_the_prompt(tokenize, lines_of, hf, tmp_path):
    path = lines_of(ALPACA, {**ALPACA, "history": [["Hi", "Hello."]], "system": "Be brief."})
    assert tokenize(path).code == 0
    turn = [{"role": "user", "content": "Add.\n\n1 2"}, {"role": "assistant", "content": "3"}]
    before = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]
    assert samples(tmp_path / "out") == [
        hf.apply_chat_template(messages, return_dict=False) for messages in (turn, before + turn)
    ]
    done = tokenize(path, "--alpaca", "stanford")
    text = PROMPT_WITH_INPUT.format(instruction="Add.", input="1 2") + "3"
    assert samples(tmp_path / "out") == [[*hf(text)["input_ids"], hf.eos_token_id]]
    assert done.stderr.splitlines()[1].endswith("(tokenizer_config.json); Alpaca records take Stanford's prompt")
    reason = '"system" has no place in Stanford\'s prompt; --alpaca template has one'
    assert rejected(tmp_path / "out") == [("lines.jsonl", 2, reason)]


def test_where_the_template_is_from(tokenize, lines_of, tmp_path):
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    file = tmp_path / "own.jinja"
    file.write_text(template)
    assert tokenize(lines_of(CHAT), "--chat-template", file).stderr.splitlines()[1] == (
        f"template   {file}, for Alpaca records too"
    )
    assert tokenize(lines_of(CHAT), "--chat-template", template, "--loss-on", "all").stderr.splitlines()[1:3] == [
        "template   the text given as --chat-template, for Alpaca records too",
        "loss       on every token",
    ]


def test_tokenize_lists_what_it_rejects(tokenize, hbpack, lines_of, tmp_path):
    path, out = lines_of({"text": "good " * 99}, "bad", TEXT), tmp_path / "out"
    assert tokenize(path).code == 0
    reasons = [("lines.jsonl", 2, "broken JSON: unexpected content at column 1")]
    assert [entry[:2] for entry in rejected(out)] == [entry[:2] for entry in reasons]
    first = (out / "rejected.jsonl").read_bytes()
    # A plan adds what it leaves out; tokenizing again does not take that away.
    assert hbpack("plan", out, "--groups", "32", "--gpus", 1, "--overflow", "drop").code == 0
    assert [entry[1] for entry in rejected(out)] == [2, 1]
    assert tokenize(path).code == 0
    assert [entry[1] for entry in rejected(out)] == [2, 1]
    assert tokenize(path, "--append-eos", "never").code == 0
    assert (out / "rejected.jsonl").read_bytes() == first


def test_rejected_records_are_named(tokenize, lines_of, tmp_path):
    path = lines_of(TEXT, {"text": 5}, "x")
    why = '"text" must be a string, this is a number'
    assert lines_without_seconds(tokenize(path))[-2:] == [
        f"warning: 2 of 3 records (66.67%) are rejected; the first: {path}:2: {why}",
        f"rejected records, with reasons: {tmp_path}/out/rejected.jsonl",
    ]


@pytest.mark.parametrize(("num_good", "is_warning"), [(98, True), (99, False)])
def test_many_rejected_records_are_a_warning(tokenize, lines_of, num_good, is_warning):
    path = lines_of({"text": 5}, *[TEXT] * num_good)
    why = f'{path}:1: "text" must be a string, this is a number'
    many = f"warning: 1 of 99 records (1.01%) is rejected; the first: {why}"
    assert lines_without_seconds(tokenize(path))[-2] == (many if is_warning else f"first rejected: {why}")


def test_a_file_of_which_nothing_is_used_is_a_warning(tokenize, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": 1}\n' + '{"text": "good"}\n' * 900)
    for name in ("b", "c"):
        (folder / f"{name}.jsonl").write_text(f'{{"prompt": "to be written as {name}"}}\n')
    (folder / "d.jsonl").write_text("\n")
    (line,) = [line for line in tokenize(folder, "--schema", "text").stderr.splitlines() if "warning" in line]
    assert line.startswith(
        f"warning: 3 of 903 records (0.33%) are rejected, among them all of {folder}/b.jsonl and 1 other file; "
        f"the first: {folder}/b.jsonl:1: not a text record: "
    )


def test_all_rejected(tokenize, pack, lines_of, tmp_path):
    path, out = lines_of("x", {"text": 5}), tmp_path / "out"
    done = tokenize(path)
    assert (done.code, done.stdout) == (1, "")
    assert lines_without_seconds(done)[4:] == [
        "tokenized 2 records: 0 samples, 0 tokens, 2 rejected (# s)",
        f"first rejected: {path}:1: broken JSON: unexpected character, expected a JSON value at column 1",
        f"error: every record was rejected, see '{out}/rejected.jsonl'",
    ]
    assert [entry[1] for entry in rejected(out)] == [1, 2]
    done = pack(path)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"error: there is nothing to plan: every record was rejected, see '{out}/rejected.jsonl'"
    )
    assert [entry[1] for entry in rejected(out)] == [1, 2]
    assert pack(lines_of(TEXT)).code == 0


@pytest.mark.parametrize(
    ("loss_on", "said"),
    [
        ("last-turn", "on the last assistant turn, completions and plain texts"),
        ("no-reasoning", "on assistant turns without reasoning, completions and plain texts"),
        ("reasoning+last-turn", "on the reasoning of the last assistant turn and completions"),
        ("reasoning+tool-calls", "on the reasoning and the tool calls of assistant turns"),
    ],
)
def test_what_carries_a_loss_is_said(tokenize, lines_of, loss_on, said):
    done = tokenize(lines_of(CHAT), "--loss-on", loss_on)
    assert lines_without_seconds(done)[2] == f"loss       {said}"


def test_a_part_that_does_not_exist(tokenize, lines_of):
    done = tokenize(lines_of(CHAT), "--loss-on", "thoughts")
    known = "completion, all, last-turn, reasoning, no-reasoning, tool-calls"
    message = f"--loss-on: must be one of {known}, or some of the last four joined by +, got 'thoughts'"
    assert (done.code, done.stderr) == (2, f"error: {message}\n")


DATED = "{% for m in messages %}{{ strftime_now('%Y-%m-%d') }} {{ m.content }}<|im_end|>{% endfor %}"


def test_a_store_keeps_the_date_of_its_first_run(hbpack, tokenize, lines_of, hf, tmp_path, tokenizer):
    today = datetime.date.today().isoformat()
    path = lines_of(CHAT)

    def dates():
        return [re.findall(r"\d{4}-\d\d-\d\d", hf.decode(sample)) for sample in samples(tmp_path / "out")]

    done = tokenize(path, "--chat-template", DATED, "--date", "2024-02-29")
    assert "dated 2024-02-29 (--date gives another), for Alpaca" in done.stderr
    assert dates() == [["2024-02-29"] * 2]
    before = tree(tmp_path / "out" / "tokens")
    assert tokenize(path, "--chat-template", DATED).code == 0
    assert tree(tmp_path / "out" / "tokens") == before
    assert tokenize(path, "--chat-template", DATED, "--date", today).code == 0
    assert dates() == [[today] * 2]
    assert tokenize(path, "--chat-template", DATED.replace("strftime_now('%Y-%m-%d')", "'x'")).code == 0
    assert json.loads((tmp_path / "out" / "tokens" / "tokens.json").read_text())["options"]["date"] is None
    unused = "--date has no effect, as the chat template writes no date; leave it out"
    assert unused in tokenize(path, "--chat-template", "chatml", "--date", today).stderr
    assert "--date: must be a date such as 2026-01-31, got '29.2.2024'" in tokenize(path, "--date", "29.2.2024").stderr


def test_tasks_of_an_array_have_one_date(hbpack, lines_of, hf, tmp_path, tokenizer, monkeypatch):
    for number in range(2):
        words = ["tokenize", lines_of(CHAT), lines_of(CHAT, TEXT, name="b.jsonl"), "--tokenizer", tokenizer]
        words += ["--chat-template", DATED, "--output", tmp_path / "out", "--shard", f"{number}/2"]
        done = hbpack(*words, *([] if number else ["--date", "2024-02-29"]))
        assert done.code == 0, done.stderr
    found = [re.findall(r"\d{4}-\d\d-\d\d", hf.decode(sample)) for sample in samples(tmp_path / "out")]
    assert {date for dates in found for date in dates} == {"2024-02-29"}
