"""Nothing is lost in silence: every record is in a shard or in rejected.jsonl, and the counts say so."""

from __future__ import annotations

import gzip
import json
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.corpus.readers.base import BATCH_BYTES
from packer_cli.tokens.encode.items import REASON
from tests.cli.conftest import rejected
from tests.reference import home, read_packs

SHAPES = (
    'expected one of "input_ids", "chosen" and "rejected", "prompt" and "completions", "messages", '
    '"instruction" and "output", "prompt" and "completion", "text", ... (docs/data.md)'
)

LINES = [
    ({"text": "A first text."}, None),
    (b'{"text": ', "broken JSON: unexpected end of data at column 10"),
    (b"[1, 2]", "a record must be a JSON object, this is an array"),
    (b"null", "a record must be a JSON object, this is null"),
    (b"", None),  # A blank line is no record.
    ({"text": 5}, '"text" must be a string, this is a number'),
    ({"text": "  "}, "empty text"),
    ({}, f"no known record shape: has keys none; {SHAPES}"),
    ({"k\u2028e\x85y": 1}, f'no known record shape: has keys "k\u2028e\x85y"; {SHAPES}'),
    (b'{"text": "\xff"}', "invalid UTF-8: byte 0xff at offset 10 of the line"),
    (b'{"text": "\\ud800"}', "broken JSON: half of a surrogate pair at column 11"),
    (b'{"text": NaN}', "broken JSON: NaN at column 10 is not a JSON value"),
    ({"messages": []}, '"messages" is empty: a conversation needs at least one message'),
    ({"messages": [{"role": "user"}]}, 'messages[0] has no "content" and no "tool_calls"; its keys: role'),
    ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}, None),
    ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}, None),
    ({"prompt": "1 + 1 =", "completion": " 2"}, None),
    ({"prompt": "a", "completion": ""}, '"completion" is empty: there is nothing to train on'),
    ({"instruction": "Add.", "output": "2"}, None),
    ({"instruction": "Add.", "output": 2}, '"output" must be a string, this is a number'),
    ({"input_ids": [1, 2, 3]}, None),
    ({"input_ids": [7]}, REASON),
    ({"input_ids": []}, '"input_ids" is empty'),
    ({"input_ids": [1, -2]}, "input_ids[1] is -2; an id must be in 0..2147483647"),
    ({"input_ids": [1024]}, "input_ids[0] is 1024; the tokenizer's ids are 0 to 1023"),
    ({"input_ids": [1, 2], "loss_mask": [1]}, '"loss_mask" has 1 entries but "input_ids" has 2; they must be equal'),
    ({"text": "A last text."}, None),
]


@pytest.fixture
def mixture(lines_of):
    return lines_of(*(line for line, _ in LINES), name="mixture.jsonl")


def test_every_record_is_packed_or_rejected_with_its_line(pack, mixture, tmp_path):
    done = pack(mixture)
    assert done.code == 0
    expected = [("mixture.jsonl", i, reason) for i, (_, reason) in enumerate(LINES, 1) if reason]
    assert rejected(tmp_path / "out") == expected
    num_good = len(LINES) - len(expected) - 1
    assert sum(len(pack["sample_ids"]) for pack in read_packs(tmp_path / "out")) == num_good
    counts = json.loads((tmp_path / "out" / "hbpack.json").read_text())["counts"]
    assert (counts["records"], counts["rejected"], counts["samples"]) == (len(LINES) - 1, len(expected), num_good)
    assert (counts["records_without_loss"], counts["pieces_without_loss"]) == (1, 0)
    assert f"tokenized {len(LINES) - 1} records: {num_good} samples (" in done.stderr
    assert f"records left out or cut, with reasons: {tmp_path}/out/rejected.jsonl" in done.stdout
    again = pack(mixture)
    assert again.stderr.splitlines()[-2:] == ["the plan is up to date", "the shards are up to date"]
    assert again.stdout == done.stdout


def test_rejects_of_many_batches_are_in_the_order_of_their_lines(pack, lines_of, tmp_path):
    """Some are refused by the reader, others when they are encoded."""
    refused = [(b"[]", LINES[2][1]), LINES[24]]
    corpus = lines_of(*(refused[i % 2][0] for i in range(9_000)), {"text": "x" * BATCH_BYTES}, b"[]", {"text": "a"})
    assert pack(corpus).code == 0
    found = rejected(tmp_path / "out")
    assert [line for _, line, _ in found] == [*range(1, 9_001), 9_002]
    assert [reason for *_, reason in found[:9_000]] == [refused[i % 2][1] for i in range(9_000)]


def test_a_schema_rejects_the_other_shapes(pack, mixture, tmp_path):
    assert pack(mixture, "--schema", "alpaca").code == 0
    reasons = {line: reason for _, line, reason in rejected(tmp_path / "out")}
    assert reasons[1] == 'not a alpaca record: has keys "text"; needs "instruction" and "output"'
    assert 19 not in reasons


def assert_ends(done, message):
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.endswith(message)


def test_max_rejected(pack, lines_of, tmp_path):
    path = lines_of({"text": "good"}, "bad", "worse")
    message = (
        "error: 2 of 3 records (66.67%) rejected, more than --max-rejected 1, most often: broken JSON: unexpected "
        f"character, expected a JSON value at column ... (2, the first at {path}:2); see "
        f"{tmp_path}/out/tokens/rejected-*.jsonl, or raise the limit: the run then goes on from here\n"
    )
    assert_ends(pack(path, "--max-rejected", 1), message)
    (rejects,) = (tmp_path / "out" / "tokens").glob("rejected-*.jsonl")
    reasons = rejects.read_text().splitlines()
    assert [json.loads(line)["line"] for line in reasons] == [2, 3]
    assert not (tmp_path / "out" / "hbpack.json").exists()
    assert pack(path, "--max-rejected", 2).code == 0
    # The limit holds for records that an earlier run rejected, too.
    assert_ends(pack(path, "--max-rejected", 1), message)


def test_a_template_that_raises_rejects_its_conversation(pack, lines_of, tmp_path):
    path = lines_of(
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"messages": [{"role": "assistant", "content": "b"}]},
        {"text": "t"},
    )
    template = (
        "{% if messages[0].role == 'user' %}{{ raise_exception('no user first') }}{% endif %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    assert pack(path, "--chat-template", template).code == 0
    reason = "the chat template cannot render this conversation: no user first"
    assert rejected(tmp_path / "out") == [("lines.jsonl", 1, reason)]


def test_a_file_of_two_inputs_is_warned_about(pack, lines_of, tmp_path):
    path = lines_of({"text": "a"}, {"text": "b"}, name="twice.jsonl")
    assert "warning" not in pack(f"{path}@2.0").stderr
    done = pack(path, path.parent / "*.jsonl")
    assert "4 samples (4 text), " in done.stderr
    warning = f"{path} is there in several inputs, and an epoch has it once for each; leave out all but one"
    assert f"\nwarning: {warning}\n" in done.stderr


def test_copies_of_a_file_are_warned_about(pack, lines_of, tmp_path):
    (tmp_path / "data/week").mkdir(parents=True)
    path = lines_of({"text": "a"}, {"text": "b"}, name="data/a.jsonl")
    lines_of({"text": "c"}, name="data/b.jsonl")
    assert "warning" not in pack(path.parent).stderr
    (path.parent / "hard.jsonl").hardlink_to(path)
    (path.parent / "week/copy.jsonl").write_bytes((path.parent / "b.jsonl").read_bytes())
    warning = (
        f"{path}, and 1 other file, is there again as {path.parent / 'hard.jsonl'}, and an epoch has it once for "
        "each; leave out all but one"
    )
    assert f"\nwarning: {warning}\n" in pack(path.parent).stderr


def test_a_file_whose_rest_is_lost_is_warned_about(pack, hbpack, lines_of, tmp_path, tokenizer):
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    whole = lines_of(*({"text": f"text number {i}"} for i in range(200)), name="a whole.jsonl")
    data = whole.read_bytes()
    half = len(data) // 2 + 3
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data)[:-300])
    (tmp_path / "c.jsonl.zst").write_bytes(zstd.compress(data[:half]) + zstd.compress(data[half:])[:-5])
    (tmp_path / "d.jsonl").write_bytes(data[:half])
    (tmp_path / "e.jsonl").write_bytes(data.replace(b"text number", b"number"))
    pq.write_table(pa.table({"text": ["a text"] * 20}), tmp_path / "g.parquet")
    (tmp_path / "g.parquet").write_bytes((tmp_path / "g.parquet").read_bytes()[:-20])
    with pytest.raises(pa.ArrowInvalid) as caught:
        pq.ParquetFile(tmp_path / "g.parquet")
    names = ("b.jsonl.gz", "c.jsonl.zst", "d.jsonl", "e.jsonl", "g.parquet")
    inputs = [whole, *(tmp_path / name for name in names)]
    column = half - data.rindex(b"\n", 0, half)
    reasons = {
        "b.jsonl.gz": "compressed data ends early; the rest of the file is lost",
        "c.jsonl.zst": "compressed data ends early; the rest of the file is lost",
        "d.jsonl": (
            f"broken JSON: unexpected end of data at column {column}; the file ends in this line, so the rest of it "
            "may be lost"
        ),
        "g.parquet": f"damaged: opening it fails ({str(caught.value).rstrip('.')}); what it holds is left out",
    }

    def warnings(done):
        assert done.code == 0
        return [line for line in done.stderr.splitlines() if line.startswith("warning")]

    expected = [f"warning: {tmp_path / name}: {reason}" for name, reason in reasons.items()]
    lost = f"{names[-1]}:1: {reasons[names[-1]]}"
    many = f"4 of 681 records (0.59%) are rejected, among them all of {tmp_path / names[-1]}; the first"
    expected.append(f"warning: {many}: {tmp_path / lost}")
    assert warnings(pack(*inputs)) == expected
    assert [(name, reason) for name, _, reason in rejected(tmp_path / "out")] == list(reasons.items())
    parts = json.loads((tmp_path / "out" / "tokens" / "tokens.json").read_text())["parts"]
    assert [len(part["files"]) for part in parts] == [6]
    assert [file["num_samples"] for file in parts[0]["files"]][::4] == [200, 200]
    assert warnings(pack(*inputs)) == expected
    command = ("tokenize", *inputs, "--tokenizer", tokenizer, "--workers", 1, "--output", tmp_path / "out")
    assert warnings(hbpack(*command)) == expected
    moved = (tmp_path / "b.jsonl.gz").rename(tmp_path / "f.jsonl.gz")
    assert warnings(pack(inputs[0], moved, *inputs[2:]))[0] == f"warning: {moved}: {reasons['b.jsonl.gz']}"


def test_what_overflow_leaves_out_is_listed(pack, sample, tmp_path):
    journals = sample / "journals.jsonl"
    assert pack(journals, "--groups", "1k", "--overflow", "drop").code == 0
    dropped = rejected(tmp_path / "out")
    assert dropped[0] == (
        "journals.jsonl",
        2,
        "the sample has 9200 tokens, over the largest group's 1024; it is left out",
    )
    done = pack(journals, "--groups", "1k", "--overflow", "truncate")
    cut = rejected(tmp_path / "out")
    assert cut[0] == (
        "journals.jsonl",
        2,
        "the sample has 9200 tokens, over the largest group's 1024; it is cut off after 1024 tokens",
    )
    assert [entry[:2] for entry in cut] == [entry[:2] for entry in dropped]
    assert "records left out or cut, with reasons" in done.stdout
    note = "--overflow truncate: 59 samples are longer than 1,024 tokens and cut off there; "
    assert done.stderr.splitlines()[-3].startswith(note)  # Then: the set is written, and holds an older version.
    done = pack(journals, "--groups", "1k", "--overflow", "split")
    assert rejected(tmp_path / "out") == []
    assert "records left out" not in done.stdout


def test_rejects_of_several_files(pack, lines_of, tmp_path):
    first = lines_of("x", {"text": "1"}, name="a file ü.jsonl")
    second = lines_of({"text": "2"}, "y", name="new\nline.jsonl")
    assert pack(first, second, f"{first}@0.5").code == 0
    assert [entry[:2] for entry in rejected(tmp_path / "out")] == [
        ("a file ü.jsonl", 1), ("new\nline.jsonl", 2), ("a file ü.jsonl", 1)
    ]  # fmt: skip


def test_weights_are_counted(pack, chats, tmp_path):
    def counts(*arguments):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert pack(*arguments).code == 0
        return json.loads((tmp_path / "out" / "hbpack.json").read_text())["counts"]

    twice = counts(f"{chats}@2.0")
    assert (twice["samples"], twice["repeated_by_weight"], twice["pieces"]) == (40, 40, 80)
    half = counts(f"{chats}@0.5")
    assert (half["samples"], half["left_out_by_weight"], half["pieces"]) == (40, 20, 20)
    both = counts(chats, chats)
    assert (both["records"], both["samples"], both["pieces"]) == (80, 80, 80)


@pytest.mark.parametrize("count", [1, 2])
def test_a_handful_of_samples(pack, lines_of, tmp_path, count):
    """Fewer samples than GPUs: fillers keep the others busy."""
    assert pack(lines_of(*[{"text": "word"}] * count), "--gpus", 64).code == 0
    assert len(list((home(tmp_path / "out") / "ranks" / "epoch-000").glob("rank-*.arrow"))) == 64
    assert sum(len(pack["sample_ids"]) for pack in read_packs(tmp_path / "out")) == count


def test_one_loss_token(pack, lines_of, tmp_path):
    assert pack(lines_of({"input_ids": [7, 8]}), "--gpus", 8).code == 0
    (only,) = read_packs(tmp_path / "out")
    assert only["input_ids"].tolist() == [7, 8]
    assert only["num_loss_tokens"] == 1


def test_one_long_line(pack, lines_of, tmp_path):
    text = "word and more " * 200_000
    assert pack(lines_of({"text": text}, {"text": "short"})).code == 0
    packs = read_packs(tmp_path / "out")
    counts = json.loads((tmp_path / "out" / "hbpack.json").read_text())["counts"]
    assert (counts["split"], counts["samples"]) == (1, 2)
    assert sum(pack["num_tokens"] for pack in packs) == counts["tokens"]
