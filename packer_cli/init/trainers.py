"""Configs of other trainers to a draft: Axolotl's, and LLaMA-Factory's with its `dataset_info.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from packer_cli.corpus.records.messages import SHAREGPT_ROLES
from packer_cli.corpus.records.shapes import SHAPES
from packer_cli.errors import ConfigError, InputError, did_you_mean
from packer_cli.init.text import Draft, TrainerConfig
from packer_cli.sizes import format_tokens

PLUGIN = "packer_cli.loader.adapters.axolotl.HbpackPlugin"
_SHAPES = {
    "chat_template": "messages",
    "sharegpt": "messages",
    "alpaca": "alpaca",
    "completion": "text",
    "pretrain": "text",
}
"""`type` of a data set -> `--schema`."""
_OVERFLOW = {"drop": "drop", "truncate": "truncate", "raise": "error"}
_CUT = {"completion", "pretrain"}
"""Types whose texts Axolotl cuts into rows, whatever `excess_length_strategy` says."""
_SAME_TEMPLATES = ("chatml", "gemma3", "llama3")
"""Names that hbpack's templates have, too, and with which they write the same text."""
_NOT_OF_AXOLOTL = {
    "test_datasets": "pack them as a set of their own, or set samples aside with validation",
    "special_tokens": "add them to the tokenizer's folder",
    "tokens": "add them to the tokenizer's folder",
    "rl": "Axolotl's plugin does not train on pairs; hbpack packs them for TRL (docs/preferences.md)",
    "dataset_exact_deduplication": "hbpack keeps every record; remove duplicates first",
    "min_sample_len": "hbpack keeps short samples; remove them first",
    "tensor_parallel_size": "add parallel: tp=N",
}
"""Keys of data that a config of hbpack has no option for."""


def read_axolotl(config: TrainerConfig, num_gpus: int | None) -> Draft:
    """Read the draft of an Axolotl config.

    Args:
        num_gpus: GPUs that train, for the tokens of a step; None if not known.

    Raises:
        InputError: it lists no data sets.
    """
    sets = [*_listed(config.get("datasets")), *_listed(config.get("pretraining_dataset"))]
    if not sets:
        raise InputError(
            "--from: the config lists no datasets, as Axolotl's do, and no dataset, as LLaMA-Factory's do; add some, "
            "or name DATA without --from"
        )
    draft = Draft()
    shapes = {shape for entry in sets if (shape := _add_set(entry, draft)) is not None}
    if len(shapes) == 1:
        draft.set("schema", shapes.pop(), "The type of the data sets.")
    if "alpaca" in {_SHAPES.get(_kind(entry)) for entry in sets}:
        draft.set("alpaca", "stanford", "Axolotl's alpaca type is the Stanford prompt.")
    _add_tokenizer(config, draft)
    if config.get("train_on_inputs"):
        draft.set("loss-on", "all", "train_on_inputs is true.")
    _add_lengths(config, draft, num_gpus, {_kind(entry) for entry in sets})
    _add_integers(config, draft, num_epochs="epochs", seed="seed")
    _add_validation(config, "val_set_size", draft)
    draft.lost += [f"{key}: {why}" for key, why in _NOT_OF_AXOLOTL.items() if config.get(key)]
    return draft


def plugin_lines(config: TrainerConfig, packed: str) -> list[str]:
    """Write the lines that the Axolotl config needs to train a packed set: its plugins, with ours, and the set."""
    known = config.get("plugins")
    names = [*known] if isinstance(known, list) else []
    names += [] if PLUGIN in names else [PLUGIN]
    return [f"plugins: [{', '.join(map(str, names))}]", f"hbpack: {packed}"]


def _listed(value: Any) -> list[TrainerConfig]:
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [entry if isinstance(entry, dict) else {"path": entry} for entry in entries]


def _kind(entry: TrainerConfig) -> str:
    kind = entry.get("type", "chat_template" if "field_messages" in entry else "completion")
    return kind.split(":")[0].split(".")[0] if isinstance(kind, str) else "a custom type"


def _add_set(entry: TrainerConfig, draft: Draft) -> str | None:
    """Add a data set's inputs; returns the shape of its records, None if it cannot be added."""
    path, kind = str(entry.get("path", "")), _kind(entry)
    shape = _SHAPES.get(kind)
    if shape is None:
        draft.lost.append(f"data set {path}: type {kind} is not read; convert it to messages or prompt and completion")
        return None
    why = _wrong_keys(entry, shape)
    if why:
        draft.lost.append(f"data set {path}: {why}")
        return None
    if entry.get("roles_to_train") not in (None, ["assistant"], ["gpt"]):
        draft.lost.append(f"data set {path}: roles_to_train {entry['roles_to_train']}: the loss is on the assistant")
    if entry.get("train_on_eos") not in (None, "turn"):
        draft.lost.append(f"data set {path}: train_on_eos {entry['train_on_eos']}: the template's mask decides")
    if entry.get("shards"):
        draft.lost.append(f"data set {path}: shards {entry['shards']}: add @WEIGHT for a part of it")
    files = entry.get("data_files")
    if files is not None and Path(path).is_dir():
        draft.inputs += [str(Path(path) / str(file)) for file in (files if isinstance(files, list) else [files])]
    elif path in ("json", "parquet", "arrow", "text") and files is not None:
        draft.inputs += [str(file) for file in (files if isinstance(files, list) else [files])]
    elif Path(path).exists() or "://" in path:
        draft.inputs.append(path)
    else:  # A name on the Hub.
        draft.inputs.append(_hub_name(entry, path, "name"))
    return shape


def _wrong_keys(entry: TrainerConfig, shape: str) -> str | None:
    """Say why the keys that a data set names are not those that hbpack reads; None if they are."""
    if shape == "messages":
        mapped = entry.get("message_property_mappings") or {}
        keys = (str(mapped.get(key, entry.get(f"message_field_{key}", key))) for key in ("role", "content"))
        return _wrong_messages(str(entry.get("field_messages", "messages")), *keys)
    if shape == "text":
        field = entry.get("field", "text")
        if not SHAPES["text"].matches([field]):
            return f"field {field}: hbpack reads {SHAPES['text'].expected()}; rename it"
    return None


def _add_tokenizer(config: TrainerConfig, draft: Draft) -> None:
    name = config.get("tokenizer_config") or config.get("base_model_config")
    _add_model(draft, config.get("base_model"), name)
    template = config.get("chat_template")
    if config.get("chat_template_jinja"):
        draft.set("chat-template", str(config["chat_template_jinja"]), "chat_template_jinja.")
    elif template in _SAME_TEMPLATES:
        draft.set("chat-template", template, f"chat_template: {template}, which writes the same text here.")
    elif template and not str(template).startswith("tokenizer_default"):
        draft.lost.append(
            f"chat_template {template}: hbpack takes the tokenizer's own; if that differs, put the Jinja text of "
            f"{template} into a file and name it as chat-template"
        )


def _add_lengths(config: TrainerConfig, draft: Draft, num_gpus: int | None, kinds: set[str]) -> None:
    length = config.get("sequence_len")
    if isinstance(length, int):
        strategy = str(config.get("excess_length_strategy") or "drop")
        overflow, why = _OVERFLOW.get(strategy, "drop"), f"Axolotl would {strategy} longer samples, too."
        if kinds & _CUT:
            overflow, why = "split", "Axolotl cuts longer texts into rows, too."
            why += f" Of the other data sets, it would {strategy} longer samples." if kinds - _CUT else ""
        draft.set("overflow", overflow, why)
        batch = ("micro_batch_size", "gradient_accumulation_steps")
        _add_rows(config, "sequence_len", batch, draft, num_gpus, _degree(config))
    if config.get("sample_packing") is False:
        draft.lost.append("sample_packing: false: hbpack always packs, and attention stays within each sample")


def _degree(config: TrainerConfig) -> int:
    """Count the GPUs that share each row; Axolotl has had three names for their number."""
    block = config.get("context_parallel")
    sizes = [block.get("size") if isinstance(block, dict) else None]
    sizes += [config.get(name) for name in ("context_parallel_size", "sequence_parallel_degree")]
    return next((size for size in sizes if isinstance(size, int) and size >= 1), 1)


_ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "system": "system", "history": "history"}
"""Column of an entry -> the record's key without one, which is the one that hbpack reads."""
_REQUIRED = ("prompt", "response")
_MEDIA = ("images", "videos", "audios")
_TAGS = {"role_tag": "from", "content_tag": "value"}
_ROLES = {"user_tag": ("human", "user"), "assistant_tag": ("gpt", "assistant")}

_NOT_OF_FACTORY = {
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
    _add_model(draft, config.get("model_name_or_path"))
    for key, rule in (("train_on_prompt", "all"), ("mask_history", "last-turn")):
        if config.get(key):
            draft.set("loss-on", rule, f"{key} is true.")
    config = {"cutoff_len": 2048, **config}
    is_cut = config.get("stage") == "pt" and config.get("packing") is not False
    why = "cuts longer texts into rows" if is_cut else "cuts off what is longer"
    draft.set("overflow", "split" if is_cut else "truncate", f"LLaMA-Factory {why}, too.")
    if isinstance(config["cutoff_len"], int):
        batch = ("per_device_train_batch_size", "gradient_accumulation_steps")
        _add_rows(config, "cutoff_len", batch, draft, num_gpus)
    _add_integers(config, draft, num_train_epochs="epochs", seed="seed")
    _add_validation(config, "val_size", draft)
    stage = config.get("stage")
    if stage == "ppo" or (stage == "pt" and draft.options.get("schema") != "text"):
        draft.lost.append(f"stage: {stage}: the records are packed as for sft, with a loss on the answers")
    draft.lost += [f"{key}: {config[key]}: {why}" for key, why in _NOT_OF_FACTORY.items() if config.get(key)]


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
    if why := _wrong_messages(str(columns.get("messages", "conversations")), of_role, of_text):
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
    return _hub_name(entry, str(entry["hf_hub_url"]), "subset")


def _hub_name(entry: TrainerConfig, name: str, subset: str) -> str:
    """Name a data set on the Hub as `hbpack pack` takes it; `subset` is the key of its configuration."""
    name = f"{name}/{entry[subset]}" if entry.get(subset) else name
    return f"{name}:{entry['split']}" if entry.get("split") else name


def _wrong_messages(field: str, role: str, content: str) -> str | None:
    """Say why hbpack does not read messages in a field that have these keys; None if it does."""
    if not SHAPES["messages"].matches([field]):
        return f"messages are in {field}: hbpack reads {SHAPES['messages'].expected()}; rename it"
    if (role, content) not in (("role", "content"), ("from", "value")):
        return f"messages have {role} and {content}: hbpack reads role and content, or from and value"
    return None


def _add_model(draft: Draft, model: Any, tokenizer: Any = None) -> None:
    """Add the tokenizer, by default the model's, and ask for the model if it is here."""
    name = tokenizer or model
    if name:
        draft.set("tokenizer", str(name))
    if model and Path(str(model)).is_dir():
        draft.ask("model", str(model), "With gpu, such as h100, times are predicted, and groups can be auto.")


def _add_rows(
    config: TrainerConfig, name: str, batch: Sequence[str], draft: Draft, num_gpus: int | None, degree: int = 1
) -> None:
    """Add rows as long as the trainer's, and the tokens of its steps.

    Args:
        name: key of the length of a row, an integer.
        batch: keys whose product is the number of rows of a data-parallel rank.
        num_gpus: None if not known.
        degree: GPUs that share each row.
    """
    length = config[name]
    draft.set("groups", [f"{format_tokens(length)}:{degree}"], f"{name} {length}: rows as long as the trainer's.")
    rows = [config.get(key) for key in batch]
    if num_gpus and all(isinstance(number, int) for number in rows):
        tokens = math.prod(rows) * length * max(1, num_gpus // degree)  # type: ignore[arg-type]
        why = f"{' x '.join((*batch, name))} on every data-parallel rank."
        draft.set("global-tokens", format_tokens(tokens), why)


def _add_integers(config: TrainerConfig, draft: Draft, **options: str) -> None:
    """Add options (key -> option) that take integers; a number of epochs is at least 1."""
    for name, option in options.items():
        value, least = config.get(name), int(option == "epochs")
        if isinstance(value, (int, float)) and math.isfinite(value) and value == int(value) and value >= least:
            draft.set(option, int(value))
        elif value is not None:
            draft.lost.append(f"{name}: {value}: {option} takes an integer")


def _add_validation(config: TrainerConfig, name: str, draft: Draft) -> None:
    """Add the samples to set aside: a share below 1, else a number of them."""
    size = config.get(name)
    if isinstance(size, int | float) and size > 0:
        share = f"{100 * size:.6g}%" if size < 1 else int(size)
        draft.set("validation", share, f"{name} {size}. They are other samples than the trainer would set aside.")
