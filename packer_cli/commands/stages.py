"""`tokenize`, `write` and `append`: what makes a packed set stage by stage, and what adds to one.

Their workers start first, and load while this process imports the rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from packer_cli.commands.arguments import StrPath, path_names, takes
from packer_cli.commands.engines import make_engine
from packer_cli.commands.pack import PackedSet
from packer_cli.config import TokenizeConfig, WriteConfig, validate
from packer_cli.config.models import AppendConfig, EngineConfig, JobConfig
from packer_cli.engine.scheduler import array_ids
from packer_cli.remote.path import as_path
from packer_cli.tokens.ahead import NamedTokenizer

if TYPE_CHECKING:
    from packer_cli.commands.option_types import CallOfAppend, CallOfTokenize, CallOfWrite
    from packer_cli.commands.tokenize import Tokenized


@takes(TokenizeConfig, JobConfig)
def tokenize(inputs: StrPath | Sequence[StrPath], *, output: StrPath, **options: Unpack[CallOfTokenize]) -> Tokenized:
    """Tokenize a corpus into a token store, as `hbpack tokenize` does. `plan` plans it, with `output`.

    Args:
        inputs: as `pack` takes them.
        output: folder to write; the store is its `tokens`.
        options: see "Options of a corpus", and `workers`, `engine` and `shard`; `tokenizer` is required.

    Returns:
        The numbers of the store; with `shard`, they are 0 until the tasks of the other shares are done.

    Raises:
        HbpackError: an option is wrong, or the run failed.
    """
    config = validate(TokenizeConfig, {**options, "inputs": path_names(inputs)})
    ids = array_ids(options.get("shard"))
    with make_engine(options, tokenizer=NamedTokenizer.of(config)) as engine:
        from packer_cli.commands.tokenize import describe_store, run_tokenize

        run_tokenize(config, as_path(output), engine, ids)
    return describe_store(os.fspath(output))


@takes(WriteConfig, JobConfig)
def write(path: StrPath, **options: Unpack[CallOfWrite]) -> PackedSet | None:
    """Write the shards and rank manifests of a plan, as `hbpack write` does.

    Args:
        path: folder of the plan.
        options: see "Options of shards", and `workers`, `engine` and `shard`.

    Returns:
        The set; None with `shard`, until the tasks of the other shares are done.

    Raises:
        HbpackError: an option is wrong, there is no plan, or the run failed.
    """
    config, ids = validate(WriteConfig, options), array_ids(options.get("shard"))
    from packer_cli.commands.write import run_write

    with make_engine(options, preload=()) as engine:
        return None if run_write(config, as_path(path), engine, ids) is None else PackedSet(path)


@takes(AppendConfig, EngineConfig)
def append(path: StrPath, inputs: StrPath | Sequence[StrPath] = (), **options: Unpack[CallOfAppend]) -> PackedSet:
    """Add data to a packed set, with the options it was made with, as `hbpack append` does.

    Call it again after a crash: it goes on, and adds nothing twice.

    Args:
        path: a packed set that keeps its token store.
        inputs: new inputs, as `pack` takes them. Without any, files that came late to a folder or pattern are added.
        options: see "Options of an append", and `workers` and `engine`.

    Raises:
        HbpackError: an option is wrong, an input of the set is gone or has changed, or the run failed.
    """
    config = validate(AppendConfig, options)
    with make_engine(options) as engine:
        from packer_cli.commands.append import run_append

        run_append(as_path(path), path_names(inputs), engine, config)
    return PackedSet(path)
