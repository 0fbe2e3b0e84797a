"""An Axolotl config to a draft: its data sets, tokenizer, lengths and batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packer_cli.corpus.records.texts import TEXT
from packer_cli.errors import InputError
from packer_cli.init.carried import add_integers, add_model, add_rows, add_validation, hub_name, wrong_messages
from packer_cli.init.text import Draft, TrainerConfig

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
_NO_PLACE = {
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
    add_integers(config, draft, num_epochs="epochs", seed="seed")
    add_validation(config, "val_set_size", draft)
    draft.lost += [f"{key}: {why}" for key, why in _NO_PLACE.items() if config.get(key)]
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
        draft.inputs.append(hub_name(entry, path, "name"))
    return shape


def _wrong_keys(entry: TrainerConfig, shape: str) -> str | None:
    """Say why the keys that a data set names are not those that hbpack reads; None if they are."""
    if shape == "messages":
        mapped = entry.get("message_property_mappings") or {}
        keys = (str(mapped.get(key, entry.get(f"message_field_{key}", key))) for key in ("role", "content"))
        return wrong_messages(str(entry.get("field_messages", "messages")), *keys)
    if shape == "text":
        field = entry.get("field", "text")
        if not TEXT.matches([field]):
            return f"field {field}: hbpack reads {TEXT.expected()}; rename it"
    return None


def _add_tokenizer(config: TrainerConfig, draft: Draft) -> None:
    name = config.get("tokenizer_config") or config.get("base_model_config")
    add_model(draft, config.get("base_model"), name)
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
        add_rows(config, "sequence_len", batch, draft, num_gpus, _degree(config))
    if config.get("sample_packing") is False:
        draft.lost.append("sample_packing: false: hbpack always packs, and attention stays within each sample")


def _degree(config: TrainerConfig) -> int:
    """Count the GPUs that share each row; Axolotl has had three names for their number."""
    block = config.get("context_parallel")
    sizes = [block.get("size") if isinstance(block, dict) else None]
    sizes += [config.get(name) for name in ("context_parallel_size", "sequence_parallel_degree")]
    return next((size for size in sizes if isinstance(size, int) and size >= 1), 1)
