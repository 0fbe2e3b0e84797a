"""LLaMA-Factory's `dataset_info.json` to a draft."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from packer_cli.corpus.records.messages import SHAREGPT_ROLES
from packer_cli.corpus.records.shapes import SHAPES
from packer_cli.errors import ConfigError, InputError, did_you_mean
from packer_cli.init.text import Draft, TrainerConfig

_ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "system": "system", "history": "history"}
"""Column of an entry -> the record's key without one, which is the one that hbpack reads."""
_REQUIRED = ("prompt", "response")
_MEDIA = ("images", "videos", "audios")
_TAGS = {"role_tag": "from", "content_tag": "value"}
_ROLES = {"user_tag": ("human", "user"), "assistant_tag": ("gpt", "assistant")}


def read_llamafactory(info: TrainerConfig, folder: Path, names: Sequence[str] = ()) -> Draft:
    """The draft of the data sets that a `dataset_info.json` lists.

    Args:
        folder: where it lies; file names are relative to it.
        names: these data sets; empty for all.

    Raises:
        ConfigError: a name is not listed.
        InputError: none of them can be packed.
    """
    for name in names:
        if name not in info:
            raise ConfigError(
                f"--from: no data set is named {name!r}{did_you_mean(name, info)}; the file has {', '.join(info)}"
            )
    draft = Draft()
    shapes = set()
    for name in names or info:
        entry = info[name]
        if not isinstance(entry, dict):
            raise InputError(
                f'--from: data set {name!r} must be an object such as {{"file_name": "chats.json"}}, '
                f"got {json.dumps(entry)}"
            )
        why = _why_not(entry)
        if why:
            draft.lost.append(f"data set {name}: {why}")
            continue
        draft.inputs.append(_input(entry, folder))
        of_turns = entry.get("formatting") in ("sharegpt", "openai")
        shapes.add("preference" if entry.get("ranking") else "messages" if of_turns else "alpaca")
        if entry.get("num_samples"):
            draft.lost.append(f"data set {name}: num_samples {entry['num_samples']}: add @WEIGHT for a part of it")
    if not draft.inputs:
        raise InputError(f"--from: no data set can be packed: {'; '.join(draft.lost)}")
    if len(shapes) == 1:
        draft.set("schema", shapes.pop(), "The formatting of the data sets.")
    return draft


def _why_not(entry: TrainerConfig) -> str | None:
    """Why a data set cannot be packed; None if it can."""
    columns, tags = dict(entry.get("columns") or {}), dict(entry.get("tags") or {})
    if columns.get("kto_tag"):
        return "of KTO's records, hbpack reads only those with good answers; name the file to pack these"
    answers = [name for name in ("chosen", "rejected") if columns.get(name, name) != name]
    if entry.get("ranking") and answers:
        return f"rename its keys: {', '.join(f'{columns[name]} to {name}' for name in answers)}"
    media = [name for name in _MEDIA if columns.get(name)]
    if media:
        return f"{', '.join(media)}: only text is packed"
    if not any(entry.get(key) for key in ("file_name", "hf_hub_url")):
        return "only file_name and hf_hub_url name data that hbpack reads"
    if entry.get("formatting", "alpaca") == "alpaca":
        return _wrong_columns(columns, is_pair=bool(entry.get("ranking")))
    return _wrong_tags(columns, tags)


def _wrong_columns(columns: TrainerConfig, *, is_pair: bool) -> str | None:
    keys = {
        column: columns.get(column, key if column in _REQUIRED or not columns else None)
        for column, key in _ALPACA.items()
    }
    present: Collection[str] = [str(key) for key in keys.values() if key]
    for shape in () if is_pair else ("alpaca", "prompt-completion", "text"):
        if SHAPES[shape].matches(present) and (shape != "text" or "response" not in columns):
            return None
    changed = [f"{key} to {_ALPACA[column]}" for column, key in keys.items() if key and key != _ALPACA[column]]
    return f"rename its keys: {', '.join(changed)}" if changed else None


def _wrong_tags(columns: TrainerConfig, tags: TrainerConfig) -> str | None:
    field = columns.get("messages", "conversations")
    if not SHAPES["messages"].matches([str(field)]):
        return f"messages are in {field}: hbpack reads {SHAPES['messages'].expected()}; rename it"
    of_role, of_text = (str(tags.get(tag, usual)) for tag, usual in _TAGS.items())
    if (of_role, of_text) not in (("from", "value"), ("role", "content")):
        return f"messages have {of_role} and {of_text}: hbpack reads from and value, or role and content"
    for tag, usual in _ROLES.items():
        role = tags.get(tag, usual[0])
        if of_role == "from" and SHAREGPT_ROLES.get(role) != usual[1]:
            return f"{tag} is {role}: hbpack reads {' and '.join(usual)}"
        if of_role == "role" and role != usual[1]:
            return f"{tag} is {role}: hbpack reads {usual[1]}"
    return None


def _input(entry: TrainerConfig, folder: Path) -> str:
    if entry.get("file_name"):
        return str(folder / entry["file_name"])
    name = str(entry["hf_hub_url"])
    name = f"{name}/{entry['subset']}" if entry.get("subset") else name
    return f"{name}:{entry['split']}" if entry.get("split") else name
