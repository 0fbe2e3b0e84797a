"""`hbpack init`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.command import LocalPath, Text, as_command, json_option, option
from packer_cli.cli.console import print_json, print_line, say_next, shown_command
from packer_cli.cli.options import output_file_option
from packer_cli.config.fields import known_gpus
from packer_cli.engine.progress import warn
from packer_cli.sizes import counted

_NEEDED = ("tokenizer", "chat-template", "eos-token", "groups", "gpus", "allow-skipped")


@as_command()
@click.argument("inputs", metavar="DATA...", nargs=-1, type=Text())
@option("--from", "from_", type=LocalPath(), metavar="FILE")
@option("--tokenizer", type=Text(), metavar="PATH")
@option("--gpus", type=click.IntRange(1, 2**20), default=8, show_default=True, metavar="N")
@option("--model", type=LocalPath(), metavar="PATH")
@option("--gpu", type=Text(known_gpus), metavar="NAME")
@option("--list", type=LocalPath(), metavar="FILE")
@output_file_option("hbpack.yaml", "Config file to write; an existing one is not overwritten.")
@json_option("output/init")
def command(**values: Any) -> None:
    r"""Look at your data and write a config file that hbpack pack runs unchanged.

    DATA are inputs as for `hbpack pack`. A few hundred records of each are read: their shapes, keys and lengths decide
    the options, and a comment says why. With --model and --gpu, the length groups are those with the shortest
    predicted epoch for the sample; otherwise, they follow a rule of thumb. What only you can know is left as a
    comment.

    Args:
        from_: Config to read instead: a training config of Axolotl or LLaMA-Factory, or a dataset_info.json.

            DATA then names the data sets to take from it; by default, all.
        tokenizer: As hbpack pack takes it. Without it, lengths are estimated.
        gpus: GPUs that train.
        model: The model's config.json, or its folder; needs --gpu.
        gpu: GPU to train on, such as h100.
        list: Write a list of the inputs' files with their sizes and checksums, and name it in the config instead.

            A run then reads these files alone, and none that has changed. This reads all of the data once.

    Examples::

        hbpack init chats.jsonl journals.jsonl --tokenizer tokenizer --gpus 8
        # Groups for a model and a GPU, in a file of another name
        hbpack init chats.jsonl --tokenizer tokenizer --gpus 8 --model model \
            --gpu h100 --output chats.yaml
    """
    from packer_cli.commands.init import init

    written = init(**values)
    if print_json(written):
        return
    for text in written.lost:
        warn(f"not carried over: {text}")
    pack = shown_command("hbpack", "pack", "--config", written.output)
    missing = [name for name in written.missing if name in _NEEDED]
    first = [f"give {', '.join(missing)} in it"] if missing else []
    say_next(f"Wrote {written.output}, for {counted(written.num_inputs, 'input')}", ", then ".join([*first, pack]))
    if written.trainer_lines:
        print_line(f"Then set in {values['from_']}, and start it as usual:")
        for line in written.trainer_lines:
            print_line(f"  {line}")
