"""The append stage: more inputs for a packed set, with the options it was made with.

The result is that of `hbpack pack` of the old and the new inputs together, byte for byte. Parts of the token store
that hold old records are kept. The plan is made again from all samples, so nearly every pack changes, and every shard
is written again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from packer_cli.config import TokenizeConfig, WriteConfig, validate
from packer_cli.corpus.discover import discover, parse_input
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import say, warn
from packer_cli.errors import FormatError, HbpackError, InputError, TokenizerError
from packer_cli.files import write_json
from packer_cli.format.constants import PLAN_NAME
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.sizes import TokenShare, counted
from packer_cli.stages.output import APPEND_MARKER, TOKENS, locked_output, store_of
from packer_cli.stages.pack import pack_corpus
from packer_cli.tokens.index import StoreIndex, read_index
from packer_cli.tokens.stage import current_index
from packer_cli.tokens.tokenizer.loading import load_tokenizer


def run_append(folder: Path, inputs: Sequence[str], tokenizer: str | None, engine: Engine) -> PlanHeader:
    """Add inputs to a packed set. Returns the header of the new plan.

    Called with the same inputs again, goes on with an append that was killed, or finds that all is done.

    Args:
        inputs: as for `hbpack pack`, with weights.
        tokenizer: where the set's tokenizer is now; None: where it was.

    Raises:
        InputError: the folder holds no packed set with its token store, or one of the set's own inputs is gone.
        TokenizerError: the tokenizer is not the set's.
    """
    read_plan_header(folder / PLAN_NAME)  # Reports a folder that holds no plan.
    with locked_output(folder, has_plan=True):
        header, index = _opened(folder)
        given = [[name, _share_value(share)] for name, share in map(parse_input, inputs)]
        old = [[source.name, _share_value(source.share)] for source in index.sources]
        noted = begun = _begun(folder, given, old)
        is_there = noted is None and len(old) > len(given) and old[-len(given) :] == given
        if noted is None:
            num_old = len(old) - len(given) if is_there else len(old)
            noted = {"inputs": given, "old": old[:num_old], "write": _write_options(folder)}
            for text, source in zip(inputs, given, strict=True):
                if source in old[:num_old]:
                    raise InputError(f"{text} is in the set already; leave it out")
        old = noted["old"]
        config = _tokenize_config(index, [*old, *given], tokenizer)
        _check_inputs(config.inputs, len(old), folder)
        _check_tokenizer(config, index)
        write_json(folder / APPEND_MARKER, noted)
        try:
            header = pack_corpus(config, header.config, WriteConfig(**noted["write"]), folder, engine)
        except HbpackError:
            if begun is None and current_index(folder / TOKENS) == index:
                (folder / APPEND_MARKER).unlink()  # The set is as it was.
            raise
        (folder / APPEND_MARKER).unlink()
    if is_there:
        say("the set has this data already")
    else:
        say(f"appended {counted(len(given), 'input')} to {len(old)}; the plan is new, and all shards were rewritten")
    return header


def _opened(folder: Path) -> tuple[PlanHeader, StoreIndex]:
    header = read_plan_header(folder / PLAN_NAME)
    store = store_of(folder, header)
    if store.resolve() != (folder / TOKENS).resolve():
        raise InputError(
            f"{str(folder)!r} was planned from the token store {str(store)!r}; run hbpack tokenize there with all "
            "inputs, then plan and write"
        )
    index = current_index(store)
    return header, index or read_index(store)  # The latter says what is wrong.


def _begun(folder: Path, given: list[list[Any]], sources: list[list[Any]]) -> dict[str, Any] | None:
    """What an append that was killed has noted; None also where the set has been packed with other inputs since.

    Args:
        sources: of the set as it is.
    """
    path = folder / APPEND_MARKER
    try:
        noted: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged ({error}); remove it, and run hbpack pack with all inputs"
        ) from None
    old = noted.get("old")
    if old is None or sources not in (old, old + noted["inputs"]):
        return None
    if noted["inputs"] != given:
        names = " ".join(map(_input_text, noted["inputs"]))
        raise InputError(
            f"an append to {str(folder)!r} did not end; finish it first with hbpack append {folder} {names}"
        )
    return noted


def _share_value(share: float | TokenShare) -> float | str:
    """A weight as a JSON value."""
    return str(share) if isinstance(share, TokenShare) else share


def _input_text(given: list[Any]) -> str:
    """A name and the value of a weight as `parse_input` reads them."""
    name, weight = given
    if weight == 1:
        return str(name)
    return f"{name}@{weight}" if isinstance(weight, str) else f"{name}@{str(weight).removesuffix('.0')}"


def _write_options(folder: Path) -> dict[str, Any]:
    """How the set was written. Raises FormatError if it is unfinished."""
    manifest = read_manifest(folder)
    if manifest.history:
        warn(
            f"the set was rebalanced to {counted(manifest.num_gpus, 'GPU')}; the new plan is for as many as the first "
            "one was, so run hbpack rebalance again"
        )
    return asdict(manifest.config.write)


def _tokenize_config(index: StoreIndex, inputs: Sequence[list[Any]], tokenizer: str | None) -> TokenizeConfig:
    values = {
        **index.options,
        "inputs": [*map(_input_text, inputs)],
        "tokenizer": tokenizer or index.tokenizer["name"],
    }
    config: TokenizeConfig = validate(
        TokenizeConfig, {name: value for name, value in values.items() if value is not None}
    )
    return config


def _check_inputs(inputs: Sequence[str], num_old: int, folder: Path) -> None:
    """Find all inputs before anything changes."""
    try:
        discover(inputs[:num_old], output=str(folder))
    except InputError as error:
        raise InputError(
            f"{error}; hbpack append reads the set's own inputs again, so this one must be as it was"
        ) from None
    discover(inputs[num_old:], output=str(folder))


def _check_tokenizer(config: TokenizeConfig, index: StoreIndex) -> None:
    found = load_tokenizer(config.tokenizer, chat_template=config.chat_template, eos_token=config.eos_token).describe()
    keys = ("fingerprint", "chat_template_fingerprint")
    if any(found[key] != index.tokenizer[key] for key in keys):
        raise TokenizerError(
            f"{config.tokenizer} is not the tokenizer that the set was made with, or has changed since; name that one "
            "with --tokenizer, or run hbpack pack with all inputs"
        )
