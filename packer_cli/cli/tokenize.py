"""`hbpack tokenize`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.command import as_command, json_option
from packer_cli.cli.console import print_json, say_next, say_share, shown_command
from packer_cli.cli.options import inputs_argument, job_options, model_options, output_option
from packer_cli.config import TokenizeConfig, validate
from packer_cli.engine.array import ArrayIds
from packer_cli.remote.path import as_path
from packer_cli.sizes import counted


@as_command()
@inputs_argument
@output_option("Folder to write; the store is its tokens/.")
@model_options(TokenizeConfig)
@json_option("output/tokenize")
@job_options
def command(output: str, ids: ArrayIds | None, workers: str | None, engine: str | None, **values: Any) -> None:
    """Tokenize a corpus into a token store.

    The first stage of `hbpack pack`. Plan the store as often as you like with `hbpack plan`.

    Examples::

        hbpack tokenize chats.jsonl --tokenizer tokenizer --output STORE
        # The first of four tasks of a job array
        hbpack tokenize chats.jsonl --tokenizer tokenizer --output TASKS --shard 0/4
    """
    config = validate(TokenizeConfig, values)
    from packer_cli.commands.engines import make_engine
    from packer_cli.tokens.ahead import NamedTokenizer

    with make_engine(workers, engine, tokenizer=NamedTokenizer.of(config)) as running:
        from packer_cli.commands.tokenize import describe_store, run_tokenize

        run_tokenize(config, as_path(output), running, ids)
    found = describe_store(output)
    from packer_cli.tokens.index import TOKENS

    if print_json(found):
        return
    if not found.is_complete:
        say_share(output)
    else:
        what = f"{counted(found.num_samples, found.unit)}, {counted(found.num_tokens, 'token')}"
        say_next(
            f"{as_path(output) / TOKENS} holds {what}",
            f"{shown_command('hbpack', 'plan', output)} --groups GROUPS --gpus N",
        )
