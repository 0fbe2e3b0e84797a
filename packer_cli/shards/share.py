"""The write stage as a task of a job array: the shards of its share, and a record of them."""

from __future__ import annotations

from pathlib import Path

from packer_cli.engine.array import ArrayShare
from packer_cli.engine.base import Engine
from packer_cli.engine.parts import Parts
from packer_cli.engine.progress import Progress
from packer_cli.format.constants import MANIFEST_NAME, SHARD_MARKERS
from packer_cli.format.manifest import WriteOptions
from packer_cli.shards.plan_file import PlanHeader
from packer_cli.shards.stage import lay_out_set, listed_shards, write_shards


def write_share(
    header: PlanHeader,
    options: WriteOptions,
    folder: Path,
    store: Path,
    engine: Engine,
    progress: Progress,
    share: ArrayShare,
) -> int:
    """Write the share of one task, and record it; see `packer_cli.shards.stage.write_set`, which makes the rest.

    The tasks of the array have checked the token store, or do so meanwhile.

    Returns the number of its shards.
    """
    layout = lay_out_set(header, options, folder, store)
    tasks = share.task.share(layout.tasks, layout.num_tokens)
    sizes = share.task.share(layout.num_tokens, layout.num_tokens)
    parts = Parts(folder, SHARD_MARKERS, MANIFEST_NAME, tasks, sizes)
    parts.find(engine, {**listed_shards(folder), **share.recorded()})
    if parts.todo:
        share.discard()
    with parts.committing(progress) as commit:
        write_shards(layout, header, options, parts, folder, store, engine, commit, is_checked=True)
    share.record({task.name: parts.finished[task.name] for task in tasks})
    return len(tasks)
