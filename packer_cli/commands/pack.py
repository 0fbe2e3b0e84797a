"""`pack`: a corpus to a packed set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, overload

from packer_cli.commands.arguments import StrPath, path_names, takes
from packer_cli.config import PackConfig, StorePlanConfig, TokenizeConfig, WriteConfig, validate
from packer_cli.config.models import EngineConfig
from packer_cli.config.set_options import BoundConfig
from packer_cli.remote.path import as_path
from packer_cli.sizes import counted, format_bytes
from packer_cli.tables.table import table_of_values, tables_html

if TYPE_CHECKING:
    from packer_cli.commands.option_types import BoundOptions, CallOfPack
    from packer_cli.commands.planned import Plan, Stats
    from packer_cli.commands.predict import DryRun
    from packer_cli.format.manifest import Manifest


@overload
def pack(
    inputs: StrPath | Sequence[StrPath], *, output: StrPath, dry_run: Literal[True], **options: Unpack[CallOfPack]
) -> DryRun: ...


@overload
def pack(
    inputs: StrPath | Sequence[StrPath],
    *,
    output: StrPath,
    dry_run: Literal[False] = False,
    **options: Unpack[CallOfPack],
) -> PackedSet: ...


@takes(PackConfig, EngineConfig)
def pack(
    inputs: StrPath | Sequence[StrPath],
    *,
    output: StrPath,
    dry_run: bool = False,
    **options: Unpack[CallOfPack],
) -> PackedSet | DryRun:
    """Turn a corpus into packed, balanced, scheduled shards, as `hbpack pack` does.

    Call it again after a crash, or with other groups: whatever is still valid is reused.

    Args:
        inputs: files, folders, globs or data sets, each with an optional weight, `"PATH@2.0"`, or
            number of tokens, `"PATH@500Mtokens"`, or share of an epoch's tokens, `"PATH@70%"`.
        output: folder to write: new, empty, or an earlier run's.
        dry_run: write nothing; return a `DryRun`, which predicts what the run would give and take, by a sample.
        options: see "Options of a corpus", "of a plan" and "of shards", and `workers` and `engine`; `tokenizer`, and
            for most strategies `groups` and `gpus`, are required.

    Raises:
        HbpackError: an option is wrong (a `UsageError`; nothing has been written), or the run failed (a `RunError`).
    """
    tokenize = validate(TokenizeConfig, {**options, "inputs": path_names(inputs)})
    plan, write = validate(StorePlanConfig, options), validate(WriteConfig, options)
    from packer_cli.commands.engines import make_engine
    from packer_cli.tokens.ahead import NamedTokenizer

    folder = as_path(output)
    with make_engine(options, tokenizer=NamedTokenizer.of(tokenize)) as engine:
        from packer_cli.commands.output_folder import locked_output
        from packer_cli.commands.pack_corpus import pack_corpus
        from packer_cli.commands.write import refuse_index
        from packer_cli.config.resolve import require_plan  # Loads numba, 0.3 s.

        require_plan(plan)
        refuse_index(write, folder=folder)
        if dry_run:
            from packer_cli.commands.predict import predict_pack

            return predict_pack(tokenize, plan, write, folder, engine)
        with locked_output(folder):
            pack_corpus(tokenize, plan, write, folder, engine)
    return PackedSet(output)


class PackedSet:
    """A packed set on disk, or behind a URL: the result of `pack`, or of `PackedSet(path)`."""

    def __init__(self, path: StrPath) -> None:
        """Open a set, without reading anything yet.

        Args:
            path: the folder or URL of the set.
        """
        self._name = path
        self._path = as_path(path)

    @property
    def path(self) -> Path:
        """Folder of the set; for a URL, an object with the same methods."""
        return self._path

    def manifest(self) -> Manifest:
        """Read `hbpack.json` anew: options, files and their checksums, groups, counts, metrics.

        Raises:
            HbpackError: there is no finished set, or its manifest is damaged.
        """
        from packer_cli.format.versions import set_at
        from packer_cli.shards.manifest import read_manifest

        return read_manifest(set_at(self._path))

    @cached_property
    def _plan(self) -> Plan:
        from packer_cli.commands.planned import read_planned

        return read_planned(self._path)

    def validation(self) -> PackedSet | None:
        """Open the packed set of the samples that `validation=` set aside; return None without that option.

        Raises:
            HbpackError: there is no plan, or it is damaged.
        """
        from packer_cli.format.constants import VALIDATION

        return PackedSet(self._path / VALIDATION) if self._plan.config.sets_aside else None

    def plan(self) -> Plan:
        """Read the plan of the set, after any `hbpack rebalance`. The arrays are memory-mapped.

        Raises:
            HbpackError: there is no plan, or it is damaged.
        """
        return self._plan

    @takes(BoundConfig)
    def stats(self, **options: Unpack[BoundOptions]) -> Stats:
        """Compute the figures of `hbpack stats` from the set's plan, which is checked for damage; see `stats`."""
        from packer_cli.commands.stats import stats

        return stats(self._name, **options)

    def __repr__(self) -> str:
        return f"PackedSet({str(self._path)!r})"

    def _repr_html_(self) -> str:
        from packer_cli.tables.stats import stats_tables

        manifest = self.manifest()
        shards = list(manifest.shards)
        facts = {
            "GPUs": f"{manifest.num_gpus:,}",
            "groups": ", ".join(group.name for group in manifest.groups),
            "shards": f"{counted(len(shards), 'file')}, {format_bytes(sum(shard.num_bytes for shard in shards))}",
            "epochs": f"{len(manifest.epochs):,}",
            "tokenizer": str(manifest.tokenizer.name),
        }
        table = table_of_values(f"Packed set {self._path}", facts.items(), "")
        return tables_html([table, *stats_tables(self.stats())])
