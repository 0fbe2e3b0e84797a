"""`hbpack pack`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli import options
from packer_cli.cli.command import as_command, json_option, option
from packer_cli.config import GpuConfig, PackConfig, validate
from packer_cli.panels import Panel


@as_command(chain=("tokenize", "plan", "write"))
@options.inputs_argument
@options.output_option("Folder to write: new, empty, or an earlier run's.")
@options.model_options(PackConfig)
@options.workers_option
@options.engine_option
@options.wait_option
@options.config_option
@json_option("output/set", Panel.OUTPUT)
@option("--dry-run", is_flag=True)
def command(inputs: tuple[str, ...], output: str, **values: Any) -> None:
    r"""Turn a corpus into packed, balanced, scheduled shards: tokenize, plan and write.

    INPUT is a file, folder or glob of JSONL, JSON, Parquet, Arrow, text, or token ids of Megatron (.bin/.idx),
    datatrove (.ds) or dolma (.npy), or a Hugging Face data set. An epoch has PATH@2.0 twice, two billion tokens of
    PATH@2Btokens, and with A@70% B@30% seven tokens of A for three of B.

    Run it again after a crash, or with other groups: whatever is still valid is reused.

    Args:
        dry_run: Tokenize, plan and show the metrics, but write no shards.

    Examples::

        # Two length groups on eight GPUs
        hbpack pack chats.jsonl --tokenizer tokenizer --groups 1k:1,8k:4 --gpus 8 \
            --output OUT
        # Groups chosen for a model and a GPU; see the plan before shards are written
        hbpack pack chats.jsonl journals.jsonl --tokenizer tokenizer --groups auto \
            --model model --gpu h100 --gpus 8 --output AUTO --dry-run
    """
    from packer_cli.commands.pack import pack

    packed = pack(inputs, output=output, **values)
    from packer_cli.cli.print_set import print_set

    print_set(output, packed.plan(), validate(GpuConfig, values))
