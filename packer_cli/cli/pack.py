"""`hbpack pack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from packer_cli.cli import options
from packer_cli.cli.command import as_command, json_option, option
from packer_cli.cli.console import print_json, print_note, print_tables
from packer_cli.config import GpuConfig, PackConfig, validate
from packer_cli.panels import Panel
from packer_cli.sizes import duration, format_bytes

if TYPE_CHECKING:
    from packer_cli.commands.predict import DryRun, PredictedRun


@as_command(chain=("tokenize", "plan", "write"))
@options.inputs_argument
@options.output_option("Folder to write: new, empty, or an earlier run's.")
@options.model_options(PackConfig)
@options.engine_options
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
        dry_run: Predict tokens, disk, memory and time from a sample; write nothing.

            A few MB of each input are read, at many places, and tokenized. Records, rejected ones and requests that
            read remote inputs are predicted, too. schemas/output/dry-run.schema.json describes the JSON.

    Examples::

        # Two length groups on eight GPUs
        hbpack pack chats.jsonl --tokenizer tokenizer --groups 1k:1,8k:4 --gpus 8 \
            --output OUT
        # Groups chosen for a model and a GPU; first see what it will take
        hbpack pack chats.jsonl journals.jsonl --tokenizer tokenizer --groups auto \
            --model model --gpu h100 --gpus 8 --output AUTO --dry-run
    """
    from packer_cli.commands.pack import PackedSet, pack

    packed = pack(inputs, output=output, **values)
    if not isinstance(packed, PackedSet):
        _print_prediction(packed)
        return
    from packer_cli.cli.print_set import print_set

    print_set(output, validate(GpuConfig, values))


def _print_prediction(found: DryRun) -> None:
    from packer_cli.tables.stats import sources_tables
    from packer_cli.tables.table import table_of, table_of_values

    if print_json(found):
        return
    values = {name: value for name, value in vars(found).items() if isinstance(value, int)}
    sizes = {name: format_bytes(size) for name, size in values.items() if name.endswith("_bytes")}
    rows = ((name.replace("_", " "), sizes.get(name, f"{value:,}")) for name, value in values.items())
    columns: dict[str, Callable[[PredictedRun], object]] = {
        "machines": lambda run: run.machines,
        "time": lambda run: duration(run.seconds),
        "requests": lambda run: f"{run.requests:,}",
    }
    print_tables(
        table_of_values("Prediction", rows, "about"),
        table_of("Time, and requests that read remote inputs", found.runs, columns),
        *sources_tables((), (), found.reasons, "sample"),
    )
    print_note("predicted from a sample, and nothing was written")
