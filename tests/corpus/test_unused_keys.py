"""Keys that no record shape reads: rejected where training would be wrong, else counted; from every kind of file."""

import json
from collections import Counter

import pytest

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.records.unused import describe
from packer_cli.corpus.types import Reject

from .helpers import ALPACA, CHAT, PROMPT, SHAREGPT, TEXT, TOKENS, reason

NOT_EMPTY = (
    "is not empty, and hbpack supports text only, not images, audio or video; remove it to train on the text alone"
)
PICTURE = [{"path": "a.png", "bytes": "x" * 100}]
PAIR = {"chosen": [{"role": "assistant", "content": "Yes"}], "rejected": [{"role": "assistant", "content": "No"}]}


def save_jsonl(folder, records):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def save_array(folder, records):
    path = folder / "a.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def table(records):
    """As `datasets` makes it: every record has every column."""
    import pyarrow as pa

    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: [record.get(name) for record in records] for name in names})


def save_parquet(folder, records):
    import pyarrow.parquet as pq

    pq.write_table(table(records), folder / "a.parquet", row_group_size=2)
    return folder / "a.parquet"


def save_arrow(folder, records):
    import pyarrow as pa

    data = table(records)
    with pa.ipc.new_file(str(folder / "a.arrow"), data.schema) as writer:
        writer.write_table(data)
    return folder / "a.arrow"


def save_datasets(folder, records):
    from datasets import Dataset

    Dataset(table(records)).save_to_disk(str(folder / "saved"))
    return folder / "saved"


SAVE = {
    "jsonl": save_jsonl,
    "json": save_array,
    "parquet": save_parquet,
    "arrow": save_arrow,
    "datasets": save_datasets,
}


def read(path, schema="auto", items="auto"):
    """Lines of documents, reasons of rejects by line, and what is not used."""
    reader = SliceReader(schema=schema, items=items)
    lines, rejects = [], {}
    for slice_ in slice_corpus(discover([str(path)])[1]):
        for batch in reader.read(slice_):
            lines += [document.line for document in batch.documents]
            lines += [] if batch.tokens is None else batch.tokens.lines.tolist()
            rejects |= {reject.line: reject.reason for reject in batch.rejects}
    return sorted(lines), rejects, dict(reader.unused)


@pytest.mark.parametrize("form", SAVE)
def test_pictures_are_rejected_from_every_kind_of_file(tmp_path, form):
    records = [
        {**CHAT, "images": PICTURE},
        {**CHAT, "images": None},
        {**CHAT, "images": []},
        {**CHAT, "images": [None]},
        {**CHAT},
        {**CHAT, "images": [*PICTURE, *PICTURE]},
    ]
    lines, rejects, unused = read(SAVE[form](tmp_path, records))
    assert (lines, unused) == ([2, 3, 4, 5], {})
    assert rejects == dict.fromkeys((1, 6), f'"images" {NOT_EMPTY}')


@pytest.mark.parametrize("form", SAVE)
def test_bad_answers_are_rejected_from_every_kind_of_file(tmp_path, form):
    records = [{**PROMPT, "label": label} for label in (True, False, None, True)]
    lines, rejects, unused = read(SAVE[form](tmp_path, records))
    assert (lines, unused) == ([1, 3, 4], {})
    assert rejects == {2: '"label" is false, so the answer is a bad one, and hbpack trains on good ones only'}


@pytest.mark.parametrize("form", SAVE)
def test_pairs_are_taken_from_every_kind_of_file_but_where_the_options_say_what_is_read(tmp_path, form):
    path = SAVE[form](tmp_path, [{**CHAT, **PAIR}, {**CHAT, "chosen": None, "rejected": []}])
    assert read(path) == ([1, 2], {}, {})
    assert read(path, items="pairs")[0] == [1]
    why = "makes it a preference pair, which --items none does not take; --schema messages ignores the pair"
    assert read(path, items="none") == ([2], {1: f'"chosen" {why}'}, {})
    assert read(path, "messages") == ([1, 2], {}, {describe("chosen"): 1, describe("rejected"): 1})


@pytest.mark.parametrize("form", SAVE)
def test_the_rest_is_counted_from_every_kind_of_file(tmp_path, form):
    records = [
        {**PROMPT, "system": "Be brief.", "functions": [{"name": "f"}], "score": 3},
        {**PROMPT, "system": "", "functions": [], "score": 4},
        {**PROMPT, "system": "Be kind.", "functions": None, "score": 5},
    ]
    expected = {
        '"system", which hbpack does not use': 2,
        '"functions", which hbpack does not use (it reads "tools")': 1,
    }
    assert read(SAVE[form](tmp_path, records)) == ([1, 2, 3], {}, expected)


@pytest.mark.parametrize("form", SAVE)
def test_tokenized_records_of_pictures(tmp_path, form):
    records = [{**TOKENS, "pixel_values": [[0.5, 1.5]]}, {**TOKENS, "pixel_values": []}, {**TOKENS, "label": 1}]
    lines, rejects, unused = read(SAVE[form](tmp_path, records))
    assert (lines, unused) == ([2, 3], {})
    assert rejects == {1: f'"pixel_values" {NOT_EMPTY}'}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["binary", "string", "struct", "dictionary"])
def test_a_column_of_one_picture(tmp_path, form, kind):
    import pyarrow as pa

    values = [b"x", None, b""]
    column = pa.array(values, pa.binary() if kind == "binary" else pa.string())
    column = column.dictionary_encode() if kind == "dictionary" else column
    if kind == "struct":
        column = pa.StructArray.from_arrays([pa.array([b"x", None, None]), pa.nulls(3)], ["bytes", "path"])
        column = column.take(pa.array([0, None, None], pa.int64()))
    data = pa.table({"text": ["a", "b", "c"], "messages": [CHAT["messages"]] * 3, "image": column})
    if form == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(data, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_stream(str(tmp_path / "a.arrow"), data.schema) as writer:
            writer.write_table(data)
    assert read(tmp_path / f"a.{form}")[:2] == ([2, 3], {1: f'"image" {NOT_EMPTY}'})


@pytest.mark.parametrize("shape", [CHAT, SHAREGPT, ALPACA, PROMPT, TOKENS])
@pytest.mark.parametrize("key", ["image", "images", "video", "videos", "audio", "audios"])
def test_media_are_rejected_in_every_shape(shape, key):
    assert reason({**shape, key: "a.bin"}) == f'"{key}" {NOT_EMPTY}'


@pytest.mark.parametrize("shape", [CHAT, SHAREGPT, ALPACA, PROMPT])
def test_answers_marked_as_bad(shape):
    for key in ("label", "kto_tag"):
        assert reason({**shape, key: False}).startswith(f'"{key}" is false, so the answer is a bad one')
        assert not isinstance(Normalizer().parse({**shape, key: True}, 1), Reject)


@pytest.mark.parametrize(
    ("record", "keys"),
    [
        ({**TEXT, "image": "a.png", "label": False}, ["image", "label"]),
        ({**PROMPT, "label": 0}, ["label"]),
        ({**ALPACA, "tools": [{"name": "f"}], "system": "", "context": "Here."}, ["tools", "context"]),
        ({**CHAT, "system": "Be brief.", "tools": [], "chat_template_kwargs": {"enable_thinking": False}},
         ["chat_template_kwargs"]),
        ({**CHAT, "chat_template_kwargs": {"enable_thinking": None}, "id": 3, "score": 1}, []),
        ({**TOKENS, "label": 3, "system": "s"}, []),
    ],
)  # fmt: skip
def test_what_is_counted(record, keys):
    normalizer = Normalizer()
    assert not isinstance(normalizer.parse(record, 1), Reject)
    assert normalizer.unused == Counter(map(describe, keys))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"images": ["a.png"]}, f'messages[1]: "images" {NOT_EMPTY}'),
        ({"loss_scale": 0.5}, 'messages[1]: "loss_scale" is 0.5, which hbpack does not read; write "weight": ...'),
        (
            {"train_detail": [{"begin_offset": 0}]},
            'messages[1]: "train_detail" selects parts of a message, which hbpack does not support',
        ),
    ],
)
def test_messages_that_would_be_trained_on_wrongly(message, expected):
    question = {"role": "user", "content": "Hi"}
    assert reason({"messages": [question, {"role": "assistant", "content": "a", **message}]}) == expected


def test_messages_that_are_trained_on_as_they_say():
    turns = [
        {"role": "user", "content": "Hi", "loss": False, "train": False, "images": []},
        {"role": "assistant", "content": "a", "loss": True, "train": True, "loss_scale": 1, "train_detail": None},
    ]
    document = Normalizer().parse({"messages": turns}, 1)
    assert document.messages == [
        {"role": "user", "content": "Hi", "images": []},
        {"role": "assistant", "content": "a", "loss_scale": 1, "train_detail": None},
    ]
    assert document.weights == (0, 1)


def test_the_first_reason_counts():
    """In the order of the record, so that the same data give the same rejects."""
    for names in (("loss_scale", "images", "video"), ("images", "video", "loss_scale")):
        answer = {"role": "assistant", "content": "a", **dict.fromkeys(names, False)}
        assert reason({"messages": [answer]}).startswith(f'messages[0]: "{names[0]}" ')


def test_what_nests_deeply_is_not_empty():
    deep = []
    for _ in range(5_000):
        deep = [deep]
    assert reason({**CHAT, "images": deep}) == f'"images" {NOT_EMPTY}'


def test_pairs_of_another_shape_say_which_is_read():
    assert reason({"input": {}, "preferred_output": [], "non_preferred_output": []}).endswith(
        ': a preference pair needs "chosen" and "rejected", texts or messages, beside a "prompt" or with a common '
        "beginning"
    )
    assert reason({**CHAT, "rejected": "No"}) == (
        '"rejected" makes it a preference pair, which needs both "chosen" and "rejected"; --schema messages ignores '
        "the pair"
    )


def test_pairs_without_another_answer_say_why_they_are_not_taken():
    for record in ({"prompt": "a", **PAIR}, PAIR, {"input": {}, "preferred_output": [], "non_preferred_output": []}):
        rejected = Normalizer(items="none").parse(record, 1)
        assert rejected.reason.endswith(
            ": --items none takes no preference pairs; leave it out, or, to train on the better answers alone, write "
            'them as "messages", or as "completion" beside "prompt"'
        )


def test_a_system_prompt_that_is_no_string():
    assert reason({**CHAT, "system": ["Be brief."]}) == '"system" must be a string, this is an array'


def test_calls_in_both_forms_are_two_readings():
    call = {"name": "get", "arguments": "{}"}
    both = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    messages = [{"role": "user", "content": "q"}, {**both, "function_call": call}]
    assert reason({"messages": messages}) == (
        'messages[1]: has both "tool_calls" and "function_call"; keep one of them'
    )
    for empty in (None, {}, {"name": None, "arguments": None}):
        messages[1]["function_call"] = empty
        assert Normalizer().parse({"messages": messages}, 1).messages[1]["tool_calls"]
