"""The tasks of the tokenize stage: one for each part, with everything that decides its bytes."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.records import SHAPES
from packer_cli.files import fingerprint
from packer_cli.tokens.ahead import NamedTokenizer
from packer_cli.tokens.cutting import Cut
from packer_cli.tokens.index import STORE_VERSION
from packer_cli.tokens.part import PartTask
from packer_cli.tokens.tokenizer.files import tokenizer_fingerprint
from packer_cli.tokens.tokenizer.loading import read_template

_LIBRARIES = ("gigatoken", "tokenizers", "transformers", "jinja2", "minijinja", "sentencepiece")


def part_tasks(config: TokenizeConfig, cuts: Sequence[Cut]) -> list[PartTask]:
    """A task for each part.

    Raises:
        TokenizerError: the tokenizer cannot be found.
    """
    options = sample_options(config)
    files = tokenizer_fingerprint(config.tokenizer)
    shared = fingerprint(options, files, library_versions(config.record_schema), STORE_VERSION)
    return [
        PartTask(
            name=cut.name,
            slices=cut.slices,
            shared_fingerprint=shared,
            tokenizer=NamedTokenizer.of(config),
            tokenizer_fingerprint=fingerprint(files, options["chat_template"], config.eos_token),
            record_schema=config.record_schema,
            max_record_bytes=config.max_record_bytes,
            alpaca=config.alpaca,
            encoder_options=(
                ("append_eos", config.append_eos),
                ("backend", config.tokenizer_backend),
                ("loss_on", config.loss_on),
                ("plain_content", config.plain_content),
            ),
        )
        for cut in cuts
    ]


def sample_options(config: TokenizeConfig) -> dict[str, Any]:
    """The options that shape samples."""
    return {
        "record_schema": config.record_schema,
        "max_record_bytes": config.max_record_bytes,
        "tokenizer_backend": config.tokenizer_backend,
        "chat_template": None if config.chat_template is None else read_template(config.chat_template),
        "loss_on": config.loss_on,
        "append_eos": config.append_eos,
        "eos_token": config.eos_token,
        "alpaca": config.alpaca,
        "plain_content": config.plain_content,
    }


@cache
def library_versions(schema: str) -> dict[str, str]:
    """Versions of the libraries that decide ids; with other versions parts are rewritten.

    Args:
        schema: of the records; another package may bring it.
    """
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    package = None if schema == "auto" else SHAPES.package(schema)
    if package is not None:
        name, version = package.rsplit(" ", 1)
        versions[name] = version
    return versions


def slice_bytes(tasks: Sequence[PartTask]) -> list[int]:
    """Input bytes of each task, for the progress bar: each slice counts an equal share of its file."""
    num_slices = Counter(slice_.file.path for task in tasks for slice_ in task.slices)
    return [
        max(1, sum(slice_.file.num_bytes // num_slices[slice_.file.path] for slice_ in task.slices)) for task in tasks
    ]
