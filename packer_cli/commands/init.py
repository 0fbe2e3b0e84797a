"""The init stage: a config file made from a look at data, or from another trainer's config."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packer_cli.commands.arguments import StrPath, path_names
from packer_cli.commands.output_file import output_file
from packer_cli.config import AUTO
from packer_cli.config.messages import why_not_yaml
from packer_cli.corpus.data_files import by_suffix, shown_skipped
from packer_cli.corpus.discover import discover
from packer_cli.corpus.input_list import text_of_list
from packer_cli.engine.progress import warn
from packer_cli.errors import ConfigError, InputError, RunError, TokenizerError
from packer_cli.files import write_text
from packer_cli.format.records import Hidden
from packer_cli.format.tokens import SkippedFiles
from packer_cli.init import trainers
from packer_cli.init.look import Look, Sampler, epoch_lengths
from packer_cli.init.text import ConfigValues, Draft, TrainerConfig, config_text, fastest_groups, propose_groups
from packer_cli.plan.strategies.registry import DEFAULT
from packer_cli.sizes import counted
from packer_cli.tokens.templates.written import EARLIER_REASONING

_NAME_A_CONFIG = "name a training config of Axolotl or LLaMA-Factory, or a dataset_info.json"
_PACKED = "packed"
"""Output folder that the config names for the packed set."""


@dataclass(frozen=True, kw_only=True)
class WrittenConfig:
    """Result of `hbpack init`."""

    output: str
    """The config file, as the user named it."""
    options: ConfigValues
    """Options in the file, besides `inputs`."""
    missing: tuple[str, ...]
    """Options in the file that are comments, for you to set."""
    lost: tuple[str, ...]
    """Parts of another trainer's config that could not be carried over."""
    trainer_lines: tuple[str, ...]
    """Lines for another trainer's config, so that it trains the packed set."""
    skipped: tuple[SkippedFiles, ...]
    """Files of the inputs that are not read, by suffix."""
    num_inputs: Hidden[int]
    """Number of inputs that the file names."""


def init(
    inputs: StrPath | Sequence[StrPath] = (),
    *,
    output: StrPath = "hbpack.yaml",
    from_: StrPath | None = None,
    tokenizer: StrPath | None = None,
    gpus: int = 8,
    model: StrPath | None = None,
    gpu: str | None = None,
    list: StrPath | None = None,
) -> WrittenConfig:
    """Look at data and write a config file that `hbpack pack` runs unchanged, as `hbpack init` does.

    Args:
        inputs: as `pack` takes them; with `from_`, names of the data sets to take from it, by default all.
        output: config file to write; an existing one is not overwritten.
        from_: config to read instead: a training config of Axolotl or LLaMA-Factory, or a dataset_info.json.
        tokenizer: as `pack` takes it. Without it, lengths are estimated.
        gpus: GPUs that train.
        model: the model's config.json, or its folder; needs `gpu`. The groups are then chosen for both.
        gpu: GPU to train on, such as `"h100"`.
        list: write a list of the inputs' files with their sizes and checksums, and name it in the config instead.

    Raises:
        HbpackError: an option is wrong, an input or the other config cannot be read, or no record of the sample can be
            used.
    """
    path = output_file(os.fspath(output), "hbpack.yaml", None)
    if list is not None:
        output_file(os.fspath(list), "inputs.jsonl", None, option="--list")
    if (model is None) != (gpu is None):
        given, missing = ("--model", "--gpu") if model else ("--gpu", "--model")
        raise ConfigError(f"{missing} is missing; give it too, or leave {given} out")
    if not isinstance(gpus, int) or not 1 <= gpus <= 2**20:
        raise ConfigError(f"--gpus must be a number from 1 to {2**20}, got {gpus!r}")
    draft = _begin(path_names(inputs), from_, gpus)
    if tokenizer is not None:
        draft.set("tokenizer", os.fspath(tokenizer))
    draft.ask("tokenizer", "path/to/tokenizer", "The tokenizer of the model that you train: its folder, or hub name.")
    looks = _look(draft, has_source=from_ is not None, has_tokenizer=tokenizer is not None)
    for look in looks:
        if look.skipped:
            warn(f"{look.name}: skipped {shown_skipped(look.skipped)}")
        if list is None and sum(each.num_bytes for each in look.skipped) > look.num_bytes:
            draft.ask("allow-skipped", "true", "More of an input is skipped than read: hbpack pack refuses that.")
    if any(look.needs_template for look in looks):
        what = (
            "The data are conversations, and the tokenizer has no chat template: name a file, or one such as chatml."
        )
        draft.ask("chat-template", "path/to/template.jinja", what)
    if any(look.needs_eos for look in looks):
        what = "Texts and completions end with EOS, and the tokenizer names none: give a token of its vocabulary."
        draft.ask("eos-token", "<|endoftext|>", what)
    draft.options = {"output": _PACKED, **draft.options, "gpus": gpus}
    draft.reasons["output"] = "The folder that the packed set is written to."
    _add_shape(draft, looks)
    _add_groups(draft, gpus, None if model is None else os.fspath(model), gpu, looks)
    what = "Tokens of an optimizer step. Without it, each iteration is a step, so that steps differ in tokens."
    draft.ask("global-tokens", "4m", what)
    draft.ask("epochs", "3", "Epochs to write rank manifests for; the loader can go on beyond them.")
    if list is not None:
        draft.inputs = [_pinned(os.fspath(list), draft.inputs)]
    write_text(path, config_text(draft, looks, str(path)))
    return WrittenConfig(
        output=os.fspath(output),
        options=draft.options,
        missing=tuple(draft.unknown),
        lost=tuple(draft.lost),
        trainer_lines=tuple(draft.trainer_lines),
        skipped=by_suffix(each for look in looks for each in look.skipped) or (),
        num_inputs=len(draft.inputs),
    )


def _pinned(path: str, inputs: list[str]) -> str:
    """Write a list of the files of inputs; return the name of the list that replaces the inputs in the config."""
    sources, files = discover(inputs)
    if len({source.weight for source in sources}) > 1:
        raise ConfigError(f"--list {path}: a list has one weight, and the inputs have several; list each by itself")
    write_text(Path(path), text_of_list(path, files))
    (_, at, weight) = inputs[0].removeprefix(sources[0].name).rpartition("@")
    return f"@{path}{at}{weight}"


def _begin(inputs: tuple[str, ...], source: StrPath | None, num_gpus: int) -> Draft:
    if source is None:
        if not inputs:
            raise ConfigError("DATA is required: name your files, folders or data sets, or a config with --from")
        return Draft(inputs=list(inputs))
    path = Path(source)
    config = _read(path)
    if trainers.is_training_config(config):
        return trainers.read_training(config, _read, inputs, num_gpus)
    if path.suffix == ".json":
        return trainers.read_llamafactory(config, path.parent, inputs)
    draft = trainers.read_axolotl(config, num_gpus)
    draft.inputs += inputs
    draft.trainer_lines = trainers.plugin_lines(config, _PACKED)
    return draft


def _read(path: Path) -> TrainerConfig:
    """Read the mapping in a JSON or YAML file."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"--from: {str(path)!r} cannot be read: {error.strerror}; {_NAME_A_CONFIG}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise InputError(f"--from: {str(path)!r} is not {kind}: {why_not_yaml(error)}; {_NAME_A_CONFIG}") from None
    if not isinstance(value, dict):
        raise InputError(f"--from: {str(path)!r} must hold a mapping; {_NAME_A_CONFIG}")
    return value


def _look(draft: Draft, *, has_source: bool, has_tokenizer: bool) -> list[Look]:
    """Look at the inputs. Inputs of another trainer's config need not be on this machine."""
    looks: list[Look] = []
    try:
        sampler = Sampler(draft.options.get("tokenizer"), draft.options.get("chat-template"))
        for text in draft.inputs:
            try:
                looks.append(sampler.look(text))
            except InputError as error:
                if not has_source:
                    raise
                draft.lost.append(f"not looked at: {error}")
        for what, number in sampler.unused.most_common():
            warn(f"{counted(number, 'record')} of the sample {'has' if number == 1 else 'have'} {what}")
        if sampler.unused[EARLIER_REASONING]:
            draft.ask("turns", "branch", f"Some records have {EARLIER_REASONING}.")
    except TokenizerError as error:
        if has_tokenizer:
            raise
        draft.lost.append(f"lengths are not known: {error}")
        return looks
    if looks and not any(look.num_bytes for look in looks):
        raise InputError(f"the inputs hold no data: {', '.join(look.name for look in looks)}; name others")
    if looks and not any(look.lengths for look in looks):
        reasons = [reason for look in looks for reason in look.rejects]
        why = f" (the first: {reasons[0]})" if reasons else ""
        raise RunError(f"no record of the sample can be used{why}; correct the data, or name others")
    return looks


def _add_shape(draft: Draft, looks: list[Look]) -> None:
    """Name the records' shape if all have one, so that another is noticed; print a line if shapes differ."""
    shapes = sorted({shape for look in looks for shape in look.shapes})
    is_known = len(looks) == len(draft.inputs) and len(shapes) == 1 and not any(look.rejects for look in looks)
    if "schema" in draft.options:
        return
    if len(shapes) > 1:
        draft.set("schema", "auto", f"Records of the sample have {len(shapes)} shapes: {', '.join(shapes)}.")
    elif is_known:
        draft.set("schema", shapes.pop(), "All records of the sample have this shape; others are rejected.")


def _add_groups(draft: Draft, num_gpus: int, model: str | None, gpu: str | None, looks: list[Look]) -> None:
    if model is not None:
        draft.set("model", model)
        draft.set("gpu", gpu, "For predictions; the groups below were chosen for them.")
    if "groups" in draft.options:
        return
    lengths = epoch_lengths(looks)
    if model is None or not len(lengths):
        groups, why = propose_groups(lengths, num_gpus)
        better = "A rule of thumb: hbpack groups finds the fastest for your model and GPU."
        draft.set("groups", groups, f"{why} {better}")
    else:
        values = {"groups": AUTO, "gpus": num_gpus, "model": model, "gpu": gpu}
        draft.set("groups", *fastest_groups(values, lengths))
    if "overflow" not in draft.options:
        draft.set("overflow", "split", "For samples longer than the longest group: split, truncate, drop or error.")
    draft.set("strategy", DEFAULT, "hbpack's own; hbpack compare --strategies all compares it with the papers'.")
