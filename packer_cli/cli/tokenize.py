"""`hbpack tokenize`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.command import as_command, json_option
from packer_cli.cli.console import print_json, say_next, say_share, shown_command
from packer_cli.cli.options import inputs_argument, job_options, model_options, output_option
from packer_cli.config import TokenizeConfig
from packer_cli.remote.path import as_path
from packer_cli.sizes import counted


@as_command()
@inputs_argument
@output_option("Folder to write; the store is its tokens/.")
@model_options(TokenizeConfig)
@json_option("output/tokenize")
@job_options
def command(output: str, **values: Any) -> None:
    """Tokenize a corpus into a token store.

    The first stage of `hbpack pack`. Plan the store as often as you like with `hbpack plan`.

    Examples::

        hbpack tokenize chats.jsonl --tokenizer tokenizer --output STORE
        # The first of four tasks of a job array
        hbpack tokenize chats.jsonl --tokenizer tokenizer --output TASKS --shard 0/4
    """
    from packer_cli.commands.stages import tokenize

    found = tokenize(output=output, **values)
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
