"""What NeMo-RL would split, cut or tokenize otherwise is refused, by file and line."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from packer_cli.corpus.types import Document
from packer_cli.export import nemo_rl
from tests.export.conftest import IDENTITY, export
from tests.export.conversations import good, pack, refused, rows_of, split, turns, write
from tests.reference import home, store_parts, tree

ASSISTANT, SYSTEM = {"role": "assistant", "content": "Yes."}, {"role": "system", "content": "Be brief."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {}}}
ALPACA = {"instruction": "Say yes.", "output": "Yes."}
RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"text": "A text."}, "has no messages, and NeMo-RL reads nothing else; leave the input out"),
    "completion": (
        {"prompt": "Yes?", "completion": "Yes."},
        "has no messages, and NeMo-RL reads nothing else; leave the input out",
    ),
    "alpaca": (ALPACA, "has no messages, and NeMo-RL reads nothing else; leave the input out"),
    "tokens": ({"input_ids": [5, 6, 7]}, "has no messages, and NeMo-RL reads nothing else; leave the input out"),
    "no system": (
        {"messages": turns("user", "assistant")},
        (
            "begins with a message of role 'user', and NeMo-RL tells conversations apart by a system message at their "
            "beginning; add one, whose content may be empty"
        ),
    ),
    "two systems": (
        {"messages": turns("system", "user", "system", "user", "assistant")},
        "messages[2] is another system message, at which NeMo-RL would begin another conversation; make one of both",
    ),
    "open": (
        {"messages": turns("system", "user", "assistant", "user")},
        (
            "ends with a message of role 'user', and NeMo-RL needs the assistant's there; add that, or leave the "
            "record out"
        ),
    ),
    "two answers": (
        {"messages": turns("system", "user", "assistant", "assistant")},
        (
            "messages[3]: NeMo-RL needs a user's or a tool's message before each of the assistant, and this follows "
            "role 'assistant'; join the two, or leave the record out"
        ),
    ),
    "role": (
        {"messages": turns("system", "developer", "user", "assistant")},
        "messages[1] has role 'developer', and NeMo-RL knows only system, user, assistant and tool; change the role",
    ),
    "empty": (
        {"messages": [*turns("system", "user"), {"role": "assistant", "content": ""}, *turns("user", "assistant")]},
        "messages[2]: NeMo-RL refuses an empty content of the assistant; leave the record out",
    ),
    "reasoning": (
        {"messages": [*turns("system", "user"), {**ASSISTANT, "reasoning_content": "So it is."}]},
        'messages[2] has "reasoning_content", and NeMo-RL reads only the content; write it there',
    ),
    "tools": (
        {"messages": good(), "tools": [CALL]},
        'has "tools", which NeMo-RL does not read; leave the record out',
    ),
    "prompt": (
        {"prompt": turns("system", "user", "assistant", "user"), "completion": turns("assistant")},
        "messages[2] carries no loss, and NeMo-RL trains on all that the assistant says; leave the record out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_have_no_place(repo, tmp_path, name):
    record, message = RECORDS[name]
    path = tmp_path / "chats.jsonl"
    if name == "tokens":  # Not in one file with others.
        path.write_text(json.dumps(record) + "\n")
    else:
        write(path, [{"messages": good()}, record, record])
    packed = pack(repo, tmp_path / "out", path)
    done = export(packed, "nemo-rl", tmp_path / "dir")
    line = 1 if name == "tokens" else 2
    refused(done, f"{path}:{line}: {message}, and run hbpack pack again", tmp_path / "dir")


def test_content_in_parts():
    """Most templates write it as a list, so few sets hold such records."""
    document = Document("messages", 1, messages=[SYSTEM, {"role": "user", "content": [{"type": "text"}]}, ASSISTANT])
    with pytest.raises(ValueError, match=re.escape("messages[1]: NeMo-RL needs a content that is a string; make it")):
        nemo_rl.conversation_of(document)


def test_tool_calls():
    """The template of the samples does not write them, so no set of it holds such records."""
    messages = [*turns("system", "user"), {**ASSISTANT, "tool_calls": [CALL]}, *turns("tool", "assistant")]
    message = 'messages[2] has "tool_calls", and NeMo-RL reads only the content; write it there'
    with pytest.raises(ValueError, match=re.escape(message)):
        nemo_rl.conversation_of(Document("messages", 1, messages=messages))


def test_an_answer_of_weight_0(repo, tmp_path):
    messages = [*good(1), {"role": "user", "content": "Sure?"}, {**ASSISTANT, "weight": 0}]
    path = write(tmp_path / "chats.jsonl", [{"messages": messages}])
    packed = pack(repo, tmp_path / "out", path, "--chat-template", IDENTITY, "--append-eos", "never", template=None)
    message = "messages[4] carries no loss, and NeMo-RL trains on all that the assistant says; leave the record out"
    done = export(packed, "nemo-rl", tmp_path / "dir")
    refused(done, f"{path}:1: {message}, and run hbpack pack again", tmp_path / "dir")


def test_weights(repo, tmp_path):
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i), "weight": 0.5} for i in range(9)])
    packed = pack(repo, tmp_path / "out", path)
    refused(
        export(packed, "nemo-rl", tmp_path / "dir"),
        f"{str(packed)!r} has loss weights, for which nemo-rl has no place: export to megatron, parquet or mds, or "
        "add --no-loss-weights, with which all loss tokens count 1",
        tmp_path / "dir",
    )
    assert export(packed, "nemo-rl", tmp_path / "dir", "--no-loss-weights").code == 0


@pytest.mark.parametrize("overflow", ["split", "truncate"])
def test_samples_that_were_cut(repo, tmp_path, overflow):
    long = [SYSTEM, {"role": "user", "content": "Yes?"}, {"role": "assistant", "content": "Yes, yes. " * 1000}]
    path = write(tmp_path / "chats.jsonl", [{"messages": each} for each in (good(1), long, good(2), long)])
    packed = pack(repo, tmp_path / "out", path, "--overflow", overflow)
    refused(
        export(packed, "nemo-rl", tmp_path / "dir"),
        f"{path}:2: was cut to the capacity, and NeMo-RL cannot read a piece of a conversation; run hbpack pack again "
        "with --overflow drop, or a larger capacity",
        tmp_path / "dir",
    )
    packed = pack(repo, tmp_path / "dropped", path, "--overflow", "drop")
    assert export(packed, "nemo-rl", tmp_path / "dir").code == 0
    found = [each for row in rows_of(tmp_path / "dir") for each in split(row["messages"])]
    assert sorted(found, key=str) == sorted([good(1), good(2)], key=str)


def test_eos_that_was_added(repo, tmp_path):
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(9)])
    packed = pack(repo, tmp_path / "out", path, "--chat-template", IDENTITY, "--loss-on", "all", template=None)
    refused(
        export(packed, "nemo-rl", tmp_path / "dir"),
        f"{path}:1: ends with an EOS token that its template did not write, so NeMo-RL would not; run hbpack "
        "pack again with --append-eos never",
        tmp_path / "dir",
    )


def test_special_tokens_as_text(repo, tmp_path):
    for name, text in (("one", "Yes."), ("other", "Yes. <|end|>")):
        path = write(
            tmp_path / f"{name}.jsonl", [{"messages": [*turns("system", "user"), {**ASSISTANT, "content": text}]}]
        )
        pack(repo, tmp_path / name, path, "--plain-content")
    assert export(tmp_path / "one", "nemo-rl", tmp_path / "fine").code == 0
    refused(
        export(tmp_path / "other", "nemo-rl", tmp_path / "dir"),
        f"{tmp_path / 'other.jsonl'}: holds the text of a special token, which --plain-content took for text, and "
        "NeMo-RL takes for the token; run hbpack pack again without --plain-content",
        tmp_path / "dir",
    )


def test_inputs_that_are_not_what_they_were(repo, tmp_path):
    data = tmp_path / "data"
    for name in ("a", "b"):
        write(data / f"{name}.jsonl", [{"messages": good(i)} for i in range(20)])
    packed, output = pack(repo, tmp_path / "out", data), tmp_path / "dir"
    remedy = "put it back as it was, or run hbpack pack again"
    intact = (data / "b.jsonl").read_text()
    (data / "b.jsonl").write_text(intact.replace("18 and 18", "18 and 19"))
    refused(
        export(packed, "nemo-rl", output),
        f"{data / 'b.jsonl'}: has changed since it was packed; {remedy}",
        output,
    )
    (data / "b.jsonl").unlink()
    refused(export(packed, "nemo-rl", output), f"{data / 'b.jsonl'}: is gone since it was packed; {remedy}", output)
    data.rename(tmp_path / "elsewhere")
    done = export(packed, "nemo-rl", output)
    assert done.stderr.splitlines()[-1].startswith(f"error: {data}: no such file or directory")
    assert done.stderr.endswith(f"; {remedy}\n")
    assert not output.exists()
    # A copy is as good, and a file more is none of the set's.
    shutil.copytree(tmp_path / "elsewhere", data)
    (data / "b.jsonl").write_text(intact)
    write(data / "c.jsonl", [{"text": "more"}])
    assert export(packed, "nemo-rl", output).code == 0
    # A finished export needs them no more, until it is damaged.
    shutil.rmtree(data)
    assert export(packed, "nemo-rl", output).stderr == "the export is up to date\n"
    before = tree(output)
    (output / "part-00000.jsonl").unlink()
    assert export(packed, "nemo-rl", output).code == 2
    shutil.copytree(tmp_path / "elsewhere", data)
    (data / "b.jsonl").write_text(intact)
    assert export(packed, "nemo-rl", output).code == 0
    assert tree(output) == before


def test_a_set_without_its_tokens(repo, tmp_path):
    path = write(tmp_path / "chats.jsonl", [{"messages": good(i)} for i in range(9)])
    packed = pack(repo, tmp_path / "out", path, "--no-keep-tokens")
    refused(
        export(packed, "nemo-rl", tmp_path / "dir"),
        f"the token store {str(packed / 'tokens')!r} is gone, which says where the samples of {str(packed)!r} are "
        "from; run hbpack pack again, without --no-keep-tokens",
        tmp_path / "dir",
    )


def test_a_store_of_another_plan(repo, tmp_path):
    for name in ("one", "other"):
        write(tmp_path / f"{name}.jsonl", [{"messages": good(i + (name == "one"))} for i in range(9)])
        pack(repo, tmp_path / name, tmp_path / f"{name}.jsonl")
    (part,) = store_parts(tmp_path / "one")
    shutil.rmtree(tmp_path / "one" / "tokens")
    shutil.copytree(tmp_path / "other" / "tokens", tmp_path / "one" / "tokens")
    gone = f"token store part '{part}' is missing; tokenize again"
    for reason in (gone, "has changed since the plan was made; run hbpack plan again"):
        done = export(tmp_path / "one", "nemo-rl", tmp_path / "dir")
        assert (done.code, not (tmp_path / "dir").exists()) == (1, True)
        assert reason in done.stderr
        (home(tmp_path / "one") / "store.json").unlink(missing_ok=True)  # The version's own copy of the index.
