"""The inputs of a set, a plan or a token store: what was read of each, and its part of an epoch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from packer_cli.errors import FormatError, InputError
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import NamedInput, SampleCounts
from packer_cli.format.tokens import InputInfo
from packer_cli.plan.figures import Stats
from packer_cli.shards.own_store import own_index
from packer_cli.shards.plan_file import PlanHeader
from packer_cli.tokens.accounts import files_of, inputs_of, reasons_of
from packer_cli.tokens.index import read_index

S = TypeVar("S", bound=Stats)


def sources_of(header: PlanHeader, manifest: Manifest | None, folder: Path) -> tuple[InputInfo, ...] | None:
    """Return the inputs of a plan on disk, in this folder; None if only its token store knew, and that is gone."""
    if manifest is not None:
        return manifest.sources
    with suppress(InputError, FormatError):
        return inputs_of(own_index(folder, header))
    return None


def parts_of_epoch(
    sources: tuple[InputInfo, ...] | None, counts: SampleCounts | None
) -> tuple[NamedInput, ...] | None:
    """Name each input's part of an epoch; None without a plan, and for a validation set."""
    if sources is None or counts is None or counts.inputs is None:
        return None
    return tuple(
        NamedInput(name=source.name, share=each.tokens / max(1, counts.tokens), **vars(each))
        for source, each in zip(sources, counts.inputs, strict=True)
    )


def with_store(stats: S, store: Path | None) -> S:
    """Add the inputs of a token store to the figures of its samples; lengths alone have none."""
    if store is None:
        return stats
    index = read_index(store)
    sources, reasons = inputs_of(index), reasons_of(files_of(index))
    return replace(stats, sources=sources, inputs=parts_of_epoch(sources, stats.counts), reasons=reasons or None)
