"""Arguments of a Trainer that trains packed sets: these sets, what does not fit one, and what it decides by itself."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from xxhash import xxh3_128_hexdigest

from packer_cli.errors import ConfigError
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.storage import open_set

_LOGGER = logging.getLogger(__name__)

_UNSUPPORTED = {
    "label_smoothing_factor": "is not supported on packed rows; set it to 0",
    "neftune_noise_alpha": "makes noise by the length of a sample, and would see that of a row; leave it out",
    "auto_find_batch_size": "cannot change the rows of a plan; leave it out, and pack with smaller groups",
    "packing": "would pack the packs again; leave it out",
    "assistant_only_loss": "does not change a packed set; leave it out, and see hbpack pack --loss-on",
    "completion_only_loss": "does not change a packed set; leave it out, and see hbpack pack --loss-on",
    "activation_offloading": "is not supported on packed rows; leave it out, and pack with --model and --gpu, for "
    "gradient checkpointing where a row needs it",
}
"""Arguments of TrainingArguments and TRL's configs that are refused, with the reason."""
_NOT_CALLED = (
    "compute_loss_func",
    "compute_metrics",
    "preprocess_logits_for_metrics",
    "data_collator",
    "formatting_func",
)
"""Arguments of Trainer and SFTTrainer that are not called."""


_DECIDED = (
    "data_seed",
    "dataloader_num_workers",
    "dataloader_drop_last",
    "dataset_num_proc",
    "dataset_text_field",
    "eval_packing",
    "max_length",
    "packing_strategy",
    "pad_to_multiple_of",
    "padding_free",
    "precompute_ref_batch_size",
    "shuffle_dataset",
    "train_sampling_strategy",
    "truncation_mode",
)
"""Arguments of TrainingArguments and TRL's configs that the plan decides."""
_BATCH_SIZES = ("per_device_train_batch_size", "per_device_eval_batch_size")
"""Arguments of which the plan decides that they are 1."""


def require_release(package: str, least: str, what: str) -> None:
    """Raise ConfigError for a release of a trainer that is older than its adapter needs.

    Args:
        what: needs it; for messages.
    """
    found = version(package)
    if [*map(int, found.split(".")[:2])] < [*map(int, least.split("."))]:
        raise ConfigError(f"{package} {found} is installed, and {what} needs {least} or later; upgrade {package}")


def warn_of_tokenizer(given: Any, known: Mapping[str, Any]) -> None:
    """Warn of a `processing_class` other than the tokenizer of the set, in its ids or its chat template.

    Args:
        known: the manifest's `TokenizerInfo`.
    """
    tokenizer: Any = given if hasattr(given, "get_vocab") else getattr(given, "tokenizer", None)
    if not hasattr(tokenizer, "get_vocab"):
        return
    template, ids = getattr(tokenizer, "chat_template", None), tokenizer.get_vocab().values()
    text = template.get("default") if isinstance(template, dict) else template
    found = {"vocab_size": max(ids, default=-1) + 1, "eos_token_id": tokenizer.eos_token_id}
    found["chat_template_fingerprint"] = text and xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
    differing = [name for name, value in found.items() if value != known.get(name, value)]
    if differing:
        text = (
            "processing_class, which is saved with the model, is not the tokenizer of the set, %s: it has another %s"
        )
        _LOGGER.warning(text, known.get("name"), ", ".join(differing))


def require_fitting(args: Any, others: Mapping[str, Any]) -> None:
    """Raise ConfigError for what a packed set decides, or what would change its loss, or would be ignored.

    Args:
        args: a TrainingArguments.
        others: the trainer's other arguments.
    """
    if not hasattr(args, "world_size"):
        raise ConfigError("give args, a TrainingArguments or SFTConfig: they say how many processes train")
    if args.n_gpu > 1:
        raise ConfigError("several GPUs in one process: start with torchrun, or the Trainer would split each row")
    if args.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, and the plan says how many micro-"
            "batches a step has; leave it out, and give hbpack pack --global-tokens"
        )
    for name, reason in _UNSUPPORTED.items():
        if value := getattr(args, name, None):
            raise ConfigError(f"{name}={value!r} {reason}")
    if getattr(args, "loss_type", None) == "dft":
        raise ConfigError("loss_type='dft' is not supported on packed rows; leave it out")
    for name in _NOT_CALLED:
        if others.get(name) is not None:
            raise ConfigError(f"{name} would not be called on packed rows; leave it out")
    if others.get("model_init") is not None:
        raise ConfigError("model_init would make a model that does not run packed rows; give the model")
    parallel = getattr(args, "parallelism_config", None)
    if parallel is not None and any(
        getattr(parallel, f"{kind}_size", 1) not in (None, 1) for kind in ("tp", "cp", "sp")
    ):
        raise ConfigError(
            "parallelism_config divides rows or layers among GPUs, and the plan says which GPUs share a row; leave "
            "tp, cp and sp out"
        )


def adapted(args: Any) -> Any:
    """Copy the arguments, and adapt the copy to packed rows."""
    args = copy.copy(args)
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    defaults |= {"per_device_train_batch_size": 1, "max_length": None}  # Whoever gives these may give the defaults.
    ignored = [name for name in _BATCH_SIZES if getattr(args, name) not in (1, defaults[name])]
    ignored += [name for name in _DECIDED if getattr(args, name, None) not in (None, defaults.get(name))]
    if ignored and args.should_log:
        _LOGGER.warning("no effect, as the plan decides: %s", ", ".join(ignored))
    args.activation_checkpointing = args.gradient_checkpointing = False
    args.activation_checkpointing_kwargs = args.gradient_checkpointing_kwargs = None
    args.ignore_data_skip = True  # The data set resumes by itself; skipping would skip twice.
    args.remove_unused_columns = False
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False
    if args.use_liger_kernel:  # Its loss would replace the forward pass that runs packed rows.
        replaced = {"fused_linear_cross_entropy": False, "cross_entropy": False}
        args.liger_kernel_config = {**(args.liger_kernel_config or {}), **replaced}
    if hasattr(args, "max_length"):  # TRL's
        args.max_length = None
    if hasattr(args, "dataset_kwargs"):  # SFTConfig's
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    return args


def open_named(value: Any, args: Any, training: PackedDataset, **options: Any) -> dict[str, PackedDataset]:
    """Open sets for evaluation by name; one without a name has an empty one. Arguments as for `open_for_trainer`.

    Raises:
        ConfigError: also, if training has samples that were set aside for one.
    """
    named = value if isinstance(value, Mapping) else {} if value is None else {"": value}
    found = {name: open_for_trainer("eval_dataset", each, args, **options) for name, each in named.items()}
    for each in found.values():
        each.require_held_out(training)
    return found


def tree_format(model: Any, args: Any) -> str:
    """Return the format of trees that the attention of a model takes, which may be given by its name alone."""
    config = getattr(model, "config", None)
    given = (getattr(args, "model_init_kwargs", None) or {}).get("attn_implementation")
    attention = str(given if config is None else config._attn_implementation)
    return "tree-flex" if attention.endswith("flex_attention") else "tree"


def open_for_trainer(name: str, value: Any, args: Any, *, trees: str, needs_pairs: bool) -> PackedDataset:
    """Open the set that the trainer can run: in format `trees` if it has trees, else "transformers".

    Args:
        name: of the argument, for messages.
        value: a folder, URL or data set.
        args: a TrainingArguments.
        trees: what `tree_format` says.
        needs_pairs: whether the trainer runs preference pairs.

    Raises:
        ConfigError: it is none, or one for another trainer or number of processes.
    """
    if not isinstance(value, (str, os.PathLike, PackedDataset)):
        given = "not given" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f'{name} is {given}: give the folder or URL of a packed set, such as {name}="OUT"')
    dataset: Any = value
    is_open = isinstance(dataset, PackedDataset)
    items = dataset.manifest["counts"]["items"] if is_open else open_set(dataset, verify="none")[1].counts.items
    format = "transformers" if items is None else trees
    if not is_open:
        dataset = PackedDataset(dataset, args.process_index, args.world_size, format=format)
    if needs_pairs:
        dataset.require_pairs()
    elif (dataset.manifest["counts"]["items"] or {}).get("pairs"):
        raise ConfigError(
            f"{name} holds preference pairs, and this trainer would train on rejected answers, too; use DPOTrainer or "
            'RewardTrainer, or pack the better answers as "messages" or "completion"'
        )
    if dataset.format != format:
        raise ConfigError(f"{name} has format {dataset.format!r}, and this trainer needs format={format!r}")
    if (dataset.rank, dataset.world_size) != (args.process_index, args.world_size):
        raise ConfigError(
            f"{name} was opened for rank {dataset.rank} of {dataset.world_size}, and this is process "
            f"{args.process_index} of {args.world_size}; give its folder or URL instead"
        )
    if needs_pairs and any(group["sp_size"] > 1 for group in dataset.manifest["groups"]):
        raise ConfigError(
            f"{dataset.path} has rows that GPUs share, and TRL needs whole samples for pairs; plan groups of SP "
            "degree 1"
        )
    found: PackedDataset = dataset
    return found
