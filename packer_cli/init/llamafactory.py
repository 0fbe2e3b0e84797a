"""LLaMA-Factory's `dataset_info.json`, or a training config that names data sets of it, to a draft."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from packer_cli.corpus.records.messages import SHAREGPT_ROLES
from packer_cli.corpus.records.shapes import SHAPES
from packer_cli.errors import ConfigError, InputError, did_you_mean
from packer_cli.init.carried import add_integers, add_model, add_rows, add_validation, hub_name, wrong_messages
from packer_cli.init.text import Draft, TrainerConfig

_ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "system": "system", "history": "history"}
"""Column of an entry -> the record's key without one, which is the one that hbpack reads."""
_REQUIRED = ("prompt", "response")
_MEDIA = ("images", "videos", "audios")
_TAGS = {"role_tag": "from", "content_tag": "value"}
_ROLES = {"user_tag": ("human", "user"), "assistant_tag": ("gpt", "assistant")}

_NO_PLACE = {
    "template": "hbpack takes the tokenizer's own; compare with hbpack show, or name one as chat-template",
    "max_samples": "hbpack takes all; add @WEIGHT for a part of a data set",
    "interleave_probs": "they are shares of samples; add @70% and the like for shares of an epoch's tokens",
    "eval_dataset": "pack it as a set of its own, or set samples aside with validation",
    "default_system": "add it to the conversations",
}
"""Keys of a training config that a config of hbpack has no option for."""


def is_training_config(config: TrainerConfig) -> bool:
    """Whether a mapping is a training config, which neither Axolotl nor `dataset_info.json` would be."""
    keys = ("dataset", "stage", "finetuning_type", "dataset_dir")
    return "datasets" not in config and any(isinstance(config.get(key), str) for key in keys)


def read_training(
    config: TrainerConfig, read: Callable[[Path], TrainerConfig], names: Sequence[str], num_gpus: int | None
) -> Draft:
    """Read the draft of a training config, and of the `dataset_info.json` that the config names.

    Args:
        read: gives the mapping in a file.
        names: data sets in place of those of the config, if there are any.

    Raises:
        ConfigError, InputError: see `read_llamafactory`; or the config names no data sets.
    """
    value = config.get("dataset") or ""
    named = [str(name).strip() for name in (value if isinstance(value, list) else str(value).split(","))]
    if not names and not all(named):
        raise InputError("--from: the LLaMA-Factory config names no dataset; add some, or name DATA without --from")
    folder = Path(str(config.get("dataset_dir") or "data"))
    draft = read_llamafactory(read(folder / "dataset_info.json"), folder, names or named)
    add_training(config, draft, num_gpus)
    return draft


def add_training(config: TrainerConfig, draft: Draft, num_gpus: int | None) -> None:
    """Add what a training config says besides its data sets."""
    add_model(draft, config.get("model_name_or_path"))
    for key, rule in (("train_on_prompt", "all"), ("mask_history", "last-turn")):
        if config.get(key):
            draft.set("loss-on", rule, f"{key} is true.")
    config = {"cutoff_len": 2048, **config}
    is_cut = config.get("stage") == "pt" and config.get("packing") is not False
    why = "cuts longer texts into rows" if is_cut else "cuts off what is longer"
    draft.set("overflow", "split" if is_cut else "truncate", f"LLaMA-Factory {why}, too.")
    if isinstance(config["cutoff_len"], int):
        batch = ("per_device_train_batch_size", "gradient_accumulation_steps")
        add_rows(config, "cutoff_len", batch, draft, num_gpus)
    add_integers(config, draft, num_train_epochs="epochs", seed="seed")
    add_validation(config, "val_size", draft)
    stage = config.get("stage")
    if stage == "ppo" or (stage == "pt" and draft.options.get("schema") != "text"):
        draft.lost.append(f"stage: {stage}: the records are packed as for sft, with a loss on the answers")
    draft.lost += [f"{key}: {config[key]}: {why}" for key, why in _NO_PLACE.items() if config.get(key)]


def read_llamafactory(info: TrainerConfig, folder: Path, names: Sequence[str] = ()) -> Draft:
    """Read the draft of the data sets that a `dataset_info.json` lists.

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
        of_columns = _shape_of_columns(dict(entry.get("columns") or {}))
        shapes.add("preference" if entry.get("ranking") else "messages" if of_turns else of_columns or "alpaca")
        if entry.get("num_samples"):
            draft.lost.append(f"data set {name}: num_samples {entry['num_samples']}: add @WEIGHT for a part of it")
    if not draft.inputs:
        raise InputError(f"--from: no data set can be packed: {'; '.join(draft.lost)}")
    if len(shapes) == 1:
        draft.set("schema", shapes.pop(), "The formatting of the data sets.")
    return draft


def _why_not(entry: TrainerConfig) -> str | None:
    """Say why a data set cannot be packed; None if it can."""
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
    if not is_pair and _shape_of_columns(columns):
        return None
    changed = [f"{key} to {_ALPACA[column]}" for column, key in _keys(columns).items() if key != _ALPACA[column]]
    return f"rename its keys: {', '.join(changed)}" if changed else None


def _keys(columns: TrainerConfig) -> dict[str, str]:
    """Return the keys of records by the column that they are."""
    usual = {column: key for column, key in _ALPACA.items() if column in _REQUIRED or not columns}
    found = {column: columns.get(column, usual.get(column)) for column in _ALPACA}
    return {column: str(key) for column, key in found.items() if key}


def _shape_of_columns(columns: TrainerConfig) -> str | None:
    """Return the shape that records of these columns have here; None if hbpack reads none of them so."""
    present = _keys(columns).values()
    for shape in ("alpaca", "prompt-completion", "text"):
        if SHAPES[shape].matches([*present]) and (shape != "text" or "response" not in columns):
            return shape
    return None


def _wrong_tags(columns: TrainerConfig, tags: TrainerConfig) -> str | None:
    of_role, of_text = (str(tags.get(tag, usual)) for tag, usual in _TAGS.items())
    if why := wrong_messages(str(columns.get("messages", "conversations")), of_role, of_text):
        return why
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
    return hub_name(entry, str(entry["hf_hub_url"]), "subset")
