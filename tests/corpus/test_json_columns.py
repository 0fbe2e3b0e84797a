"""Columns of Parquet and Arrow that hold JSON, maps or nulls give the records that JSON lines give."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .helpers import CHAT, read_all, write_jsonl


def record(name, arguments, properties):
    """A call whose arguments and tool have these keys."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    tool = {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}
    return {"messages": [{"role": "user", "content": "Go."}, answer], "tools": [tool]}


TEXT = {"type": "string"}
RECORDS = [
    record("look", {"city": "Oslo"}, {"city": TEXT}),
    record("send", {"role": "boss", "content": "hi"}, {"content": TEXT, "role": TEXT}),
    record("post", {"mails": [{"role": "a", "content": "b"}]}, {"mails": TEXT}),
]


def write(form, folder, table):
    if form == "parquet":
        pq.write_table(table, folder / "a.parquet")
        return folder / "a.parquet"
    if form == "saved":
        datasets = pytest.importorskip("datasets", "5", reason="Json features are new in datasets 5")
        datasets.Dataset(table).save_to_disk(str(folder / "saved"))
        return folder / "saved"
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder / "a.arrow"


def messages_of(path):
    documents, rejects = read_all(path)
    assert not rejects
    return [(document.messages, document.tools) for document in documents]


@pytest.mark.parametrize("form", ["parquet", "arrow", "saved"])
def test_null_content_is_of_messages_alone(tmp_path, form):
    """Columns have every key of any record; the others' are null."""
    found = messages_of(write(form, tmp_path, pa.Table.from_pylist(RECORDS)))
    # A user has no calls, and an object of the second record no "mails".
    assert found == messages_of(write_jsonl(tmp_path / "a.jsonl", RECORDS))


JSON = pa.json_()
CALLS = pa.list_(pa.struct([("function", pa.struct([("name", pa.string()), ("arguments", JSON)]))]))
NESTED = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", CALLS)]))


def as_text(records, kind):
    """Records with JSON in place of values of type `kind`, as an array."""

    def change(value, kind):
        if value is None:
            return None
        if isinstance(kind, pa.JsonType):
            return json.dumps(value)
        if pa.types.is_list(kind):
            return [change(each, kind.value_type) for each in value]
        if pa.types.is_struct(kind):
            return {field.name: change(value.get(field.name), field.type) for field in kind}
        return value

    def plain(kind):
        if isinstance(kind, pa.JsonType):
            return pa.string()
        if pa.types.is_list(kind):
            return pa.list_(plain(kind.value_type))
        return pa.struct([(f.name, plain(f.type)) for f in kind]) if pa.types.is_struct(kind) else kind

    return pa.array([change(each, kind) for each in records], plain(kind))


FEATURES = {
    "nested": {"_type": "List", "feature": {"tool_calls": [{"function": {"arguments": {"_type": "Json"}}}]}},
    "each": {"_type": "List", "feature": {"_type": "Json"}},
    "whole": {"_type": "Json"},
}
KINDS = {"nested": NESTED, "each": pa.list_(JSON), "whole": JSON}


FORMS = [("parquet", "type"), ("arrow", "type"), ("saved", "type"), ("parquet", "features"), ("arrow", "features")]
"""`datasets` opens no saved set that has features without the type."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("form", "how"), FORMS)
def test_json_features(tmp_path, form, kind, how):
    turns = [each["messages"] for each in RECORDS[:2]]
    big = {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": {"n": 2**70}}}]}
    turns.append([big])
    column = as_text(turns, KINDS[kind])
    table = pa.table({"messages": column.cast(KINDS[kind]) if how == "type" else column})
    if how == "features":
        about = {"info": {"features": {"messages": FEATURES[kind]}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    found = [turns for turns, _ in messages_of(write(form, tmp_path, table))]
    arguments = [turn["tool_calls"][0]["function"]["arguments"] for turns in found for turn in turns[-1:]]
    assert arguments == [{"city": "Oslo"}, {"role": "boss", "content": "hi"}, {"n": 2**70}]
    assert [[turn["content"] for turn in turns] for turns in found] == [["Go.", None], ["Go.", None], ["x"]]


def test_json_that_is_broken_rejects_its_row(tmp_path):
    column = pa.array([json.dumps(CHAT["messages"]), "[{", None]).cast(JSON)
    documents, rejects = read_all(write("parquet", tmp_path, pa.table({"messages": column, "text": ["a", "b", "c"]})))
    assert [(document.line, document.kind) for document in documents] == [(1, "messages"), (3, "text")]
    assert [(reject.line, reject.reason[:36]) for reject in rejects] == [(2, 'column "messages" cannot be read: un')]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_maps_are_objects(tmp_path, form):
    turns = [[list(turn.items()) for turn in CHAT["messages"]]] * 2
    tools = [[[("type", "function"), ("content", None)]], None]
    kind = pa.list_(pa.map_(pa.string(), pa.string()))
    table = pa.table({"messages": pa.array(turns, kind), "tools": pa.array(tools, kind)}).slice(0)
    assert messages_of(write(form, tmp_path, table)) == [
        (CHAT["messages"], [{"type": "function"}]),
        (CHAT["messages"], None),
    ]
