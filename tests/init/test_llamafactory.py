"""LLaMA-Factory's dataset_info.json becomes a draft, with a reason for all that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer_cli.errors import ConfigError, InputError
from packer_cli.init.text import Draft
from packer_cli.init.trainers import add_training, read_llamafactory

OPENAI = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"file_name": "a.json"}, None),
        ({"file_name": "a.json", "columns": {"prompt": "instruction", "query": "input", "response": "output"}}, None),
        ({"file_name": "a.json", "columns": {"prompt": "prompt", "response": "response"}}, None),
        ({"file_name": "a.json", "formatting": "sharegpt"}, None),
        ({"file_name": "a.json", "formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": OPENAI}, None),
        (
            {"file_name": "a.json", "columns": {"prompt": "question", "response": "answer"}},
            "rename its keys: question to instruction, answer to output",
        ),
        (
            {"file_name": "a.json", "formatting": "sharegpt", "columns": {"messages": "dialog"}},
            'messages are in dialog: hbpack reads "messages" or "conversations"; rename it',
        ),
        (
            {"file_name": "a.json", "formatting": "sharegpt", "tags": {"role_tag": "who"}},
            "messages have who and value: hbpack reads role and content, or from and value",
        ),
        (
            {"file_name": "a.json", "formatting": "sharegpt", "tags": {"user_tag": "Q"}},
            "user_tag is Q: hbpack reads human and user",
        ),
        ({"file_name": "a.json", "ranking": True, "columns": {"chosen": "a"}}, "rename its keys: a to chosen"),
        ({"file_name": "a.json", "ranking": True, "columns": {"prompt": "q"}}, "rename its keys: q to instruction"),
        (
            {"file_name": "a.json", "columns": {"kto_tag": "label"}},
            "of KTO's records, hbpack reads only those with good answers; name the file to pack these",
        ),
        (
            {"file_name": "a.json", "formatting": "sharegpt", "columns": {"images": "images"}},
            "images: only text is packed",
        ),
        ({"script_url": "x"}, "only file_name and hf_hub_url name data that hbpack reads"),
    ],
)
def test_what_can_be_packed(entry, why):
    draft = read_llamafactory({"good": {"hf_hub_url": "a/b", "split": "train"}, "other": entry}, Path("data"))
    assert draft.inputs == ["a/b:train", *([] if why else ["data/a.json"])]
    assert draft.lost == ([f"data set other: {why}"] if why else [])
    is_alike = entry.get("formatting") is None and entry.get("columns", {}).get("prompt") != "prompt"
    assert ("schema" in draft.options) == (why is not None or is_alike)


def test_data_sets_by_name():
    info = {"a": {"file_name": "a.json"}, "b": {"file_name": "b.json", "formatting": "sharegpt"}}
    assert read_llamafactory(info, Path(), ["b"]).options == {"schema": "messages"}
    with pytest.raises(ConfigError) as error:
        read_llamafactory({"chats": {}}, Path(), ["chat"])
    assert str(error.value) == "--from: no data set is named 'chat' (did you mean 'chats'?); the file has chats"
    with pytest.raises(InputError) as wrong:
        read_llamafactory({"a": {"script_url": "x"}}, Path())
    assert str(wrong.value) == (
        "--from: no data set can be packed: data set a: only file_name and hf_hub_url name data that hbpack reads"
    )
    pair = {"file_name": "a.json", "ranking": True, "columns": {"prompt": "instruction", "chosen": "chosen"}}
    assert read_llamafactory({"a": pair}, Path()).options == {"schema": "preference"}


def test_texts_are_no_alpaca_records():
    texts = {"file_name": "a.json", "columns": {"prompt": "text"}}
    assert read_llamafactory({"a": texts}, Path()).options == {"schema": "text"}
    assert read_llamafactory({"a": texts, "b": {"file_name": "b.json"}}, Path()).options == {}


@pytest.mark.parametrize(
    ("stage", "packing", "overflow"), [("pt", None, "split"), ("pt", False, "truncate"), ("sft", True, "truncate")]
)
def test_what_becomes_of_longer_samples(stage, packing, overflow):
    draft = Draft()
    add_training({"stage": stage, "packing": packing, "model_name_or_path": "m"}, draft, 8)
    assert draft.options == {"tokenizer": "m", "overflow": overflow, "groups": ["2k:1"]}
    assert [text[:10] for text in draft.lost] == ["stage: pt:"] * (stage == "pt")


@pytest.mark.parametrize(
    ("stage", "schema", "is_lost"), [("pt", "text", False), ("ppo", "text", True), ("dpo", None, False)]
)
def test_stages(stage, schema, is_lost):
    draft = Draft()
    draft.set("schema", schema)
    add_training({"stage": stage}, draft, 8)
    assert any(text.startswith(f"stage: {stage}: ") for text in draft.lost) == is_lost
