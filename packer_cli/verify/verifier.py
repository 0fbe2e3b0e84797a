"""The order of a verification, the checks that are left out where something is damaged, and the report."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packer_cli.engine.local import Engine
from packer_cli.engine.progress import Progress
from packer_cli.errors import FormatError, InputError, PlanError, VersionError
from packer_cli.format.checksums import find_damage
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, STORE_COPY
from packer_cli.format.entries import Generation
from packer_cli.format.manifest import Manifest
from packer_cli.format.records import in_json
from packer_cli.format.versions import is_in_version
from packer_cli.plan.core.types import PieceLoss, Plan
from packer_cli.remote.path import RemotePath, is_remote, paths_below
from packer_cli.shards import repair
from packer_cli.shards.manifest import is_of_plan, read_manifest
from packer_cli.shards.own_store import has_copy, own_index, store_of
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header
from packer_cli.shards.ranks import EpochColumns
from packer_cli.shards.write import PlannedPacks
from packer_cli.tokens.index import INDEX_NAME, StoreIndex, find_damaged_parts, read_index
from packer_cli.tokens.store import TokenStore, open_store
from packer_cli.verify.checks import check_epoch, check_shard, prove_pieces, prove_schedules


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Something that is not as it was written."""

    file: str
    """Path in the set's folder; a folder where no file alone is to blame."""
    what: str
    """Difference from what was written."""
    repair: str
    """The command that repairs it."""


@dataclass(kw_only=True)
class Verified:
    """All findings of a verification."""

    damaged: list[Damage] = field(default_factory=list)
    """Damage that is there now."""
    not_checked: list[str] = field(default_factory=list)
    """Parts of the set that could not be checked, and why; no damage by itself."""
    repaired: list[Damage] = field(default_factory=list)
    """Damage that was there before the set was repaired."""
    checked: dict[str, int] = field(default_factory=dict)
    """Number of things that were found sound, by kind."""

    @property
    @in_json
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged

    def is_damaged(self, file: str) -> bool:
        """Whether damage was found in a file."""
        return any(damage.file == file for damage in self.damaged)

    def add(self, found: Mapping[str, str], how: str) -> None:
        """Add damage: what is wrong with each file, by path, and how to repair it."""
        self.damaged += [Damage(file=file, what=what, repair=how) for file, what in found.items()]


def without_remedy(error: Exception) -> str:
    """Cut an error's text to what is wrong, without the remedy: a report has remedies of its own.

    >>> without_remedy(ValueError("'hbpack.json' is damaged (it is empty); run hbpack write, which rewrites it"))
    "'hbpack.json' is damaged (it is empty)"
    """
    return re.sub("; (run|tokenize) [^;]*$", "", str(error))


def open_verifier(
    folder: Path, root: Path, engine: Engine, *, fast: bool = False, checks_store: bool = True
) -> Verifier | Verified:
    """Open a version of a set for verification; where its manifest is damaged, return the report that says so.

    Args:
        folder: of the version.
        root: the set's folder, for commands that repair it.
        checks_store: whether to compare the checksums of the token store, unless another verification has done so.

    Raises:
        InputError: there is no packed set.
        VersionError: the set has another format version.
    """
    report = Verified(not_checked=[f"everything else: {MANIFEST_NAME} lists it"])
    write = repair.what_writes_shards(root)
    if write != repair.PACK_AGAIN:
        write += " (with --shard-size or --index-only, if you gave them before)"  # Only the manifest knew.
    try:
        return Verifier(folder, root, read_manifest(folder), engine, fast=fast, checks_store=checks_store)
    except VersionError:  # No damage, and other commands cannot read the set either.
        raise
    except FormatError as error:
        report.add({MANIFEST_NAME: without_remedy(error)}, write)
    except InputError:
        if not (root / PLAN_NAME).exists():
            raise
        report.add({MANIFEST_NAME: "it is missing: the set is not finished"}, write)
    return report


class Verifier:
    """Verification of one set: first of its files, then of their contents."""

    def __init__(
        self, folder: Path, root: Path, manifest: Manifest, engine: Engine, *, fast: bool, checks_store: bool
    ) -> None:
        self.report = Verified()
        self._folder, self._root = folder, root
        self._manifest = manifest
        self._engine = engine
        self._fast = fast
        self._checks_store = checks_store
        self._write = repair.what_writes_shards(root)

    @property
    def _write_all(self) -> str:
        """Commands that repair files whose checksums hold: such files are kept while a manifest vouches for them."""
        return f"{_remove(self._folder / MANIFEST_NAME)}, then {self._write}"

    @property
    def _deal_again(self) -> str:
        return f"{self._write}, and then hbpack rebalance again"

    def check_files(self, progress: Progress | None = None) -> None:
        """Check that every file has its checksum and is this set's. Price: reading all of them once."""
        files = list(repair.set_files(self._folder, self._manifest))
        found = repair.find_damaged(self._folder, files, self._engine, progress)
        kinds = {file.path: file.kind for file in files}
        has_plan = self._manifest.plan.path not in found
        if not has_plan:
            self._write = repair.PACK_AGAIN
        of_ranks = repair.write_command(self._root) if has_plan else repair.PACK_AGAIN
        repairs = {"plan": repair.PLAN_AGAIN, "iterations": of_ranks, "rank": of_ranks, "schedules": self._deal_again}
        for path, what in found.items():
            self.report.add({path: what}, repairs.get(kinds[path], self._write))
        # What was copied or pushed on its own has no store to which the index would belong.
        if is_in_version(self._folder) and not has_copy(self._folder, self._manifest.tokens_fingerprint):
            what = "damaged" if (self._folder / STORE_COPY).exists() else "missing"
            self.report.add({STORE_COPY: f"it is {what}"}, self._write)
        for kind, name in (("shard", "shards"), ("rank", "rank_manifests")):
            self.report.checked[name] = sum(kinds[path] == kind for path in kinds.keys() - found.keys())
        self._note_strangers(set(kinds))

    def check_contents(self, progress: Progress | None = None) -> None:
        """Check that the contents of the files agree: plan, rank manifests, packs, and without `--fast` tokens."""
        opened = self._open_plan()
        if opened is None:
            self._check_ranks(None)
            self.report.not_checked.append("packs and samples: plan.arrow, which tells them, is damaged")
            return
        plan, piece_loss, header = opened
        store = self._open_store(header)
        compared = None if self._fast else store
        packs = PlannedPacks(plan=plan, piece_loss=piece_loss, cost=header.cost, store=compared)
        try:
            prove_pieces(plan.pieces, header.config, store)
        except (PlanError, IndexError) as error:
            self.report.add({PLAN_NAME: str(error)}, repair.PLAN_AGAIN)
            return
        self._check_ranks((plan, piece_loss))
        self._check_packs(packs, progress)

    def _open_plan(self) -> tuple[Plan, PieceLoss, PlanHeader] | None:
        if self.report.is_damaged(self._manifest.plan.path):
            return None
        try:
            path = self._folder / self._manifest.plan.path
            (plan, piece_loss), header = read_plan(path, check=True), read_plan_header(path)
            if not is_of_plan(self._manifest, header.fingerprint):
                raise FormatError("it is not the plan of the shards beside it")
        except (InputError, FormatError) as error:
            self.report.add({PLAN_NAME: without_remedy(error)}, repair.PLAN_AGAIN)
            return None
        return plan, piece_loss, header

    def _open_store(self, header: PlanHeader) -> TokenStore | None:
        """Open the token store that the shards were made of; return None if it is missing or damaged."""
        store = store_of(self._folder, header)
        try:
            current = index = read_index(store)
            with suppress(FormatError):
                index = own_index(self._folder, header)
            is_gone = index != current and not all((store / part.path).exists() for part in index.parts)
            if is_gone or index.fingerprint != header.store_fingerprint:
                self._leave_out_tokens(f"the token store {str(store)!r} is of other samples than the plan")
                return None
            found = self._check_store(store, index) if self._checks_store else {}
            if not found:
                opened = open_store(store, index)
                if not self._fast:
                    opened.fetch_parts()
                return opened
            for name, what in found.items():
                # A run reads no remote file that the index lists with its size.
                how = f"{_remove(store / name)}, then {repair.PACK_AGAIN}" if is_remote(store) else repair.PACK_AGAIN
                self.report.add({f"{header.store}/{name}": what}, how)
            self._leave_out_tokens("the token store is damaged")
        except (InputError, FormatError) as error:
            is_gone = isinstance(error, InputError)
            if self._manifest.tokens or not is_gone:
                self.report.add({f"{header.store}/{INDEX_NAME}": without_remedy(error)}, repair.PACK_AGAIN)
            self._leave_out_tokens(
                f"there is no token store {str(store)!r}" if is_gone else "the token store is damaged"
            )
        return None

    def _check_store(self, store: Path, index: StoreIndex) -> dict[str, str]:
        found = find_damaged_parts(store, index, self._engine)
        for part in index.parts:
            if part.rejects_xxh3:
                path = store / part.rejects_name
                why = find_damage(path, None, part.rejects_xxh3, "tokens.json")
                found |= {path.name: why} if why else {}
        self.report.checked["token_parts"] = len(index.parts) - len(found)
        return dict(sorted(found.items()))

    def _leave_out_tokens(self, why: str) -> None:
        self.report.not_checked.append(f"whether tokens are those of the token store: {why}")

    def _check_ranks(self, planned: tuple[Plan, PieceLoss] | None) -> None:
        """Check the schedules and rank manifests of every number of GPUs that the set was for."""
        for generation in self._manifest.generations:
            columns = self._plan_ranks(generation, planned)
            for epoch, of_epoch in zip(generation.epochs, columns, strict=False):
                skip = {path for path, _ in epoch.files if self.report.is_damaged(path)}
                found = check_epoch(self._folder, self._manifest, generation, epoch, of_epoch, skip)
                self.report.add(found, self._write_all)

    def _plan_ranks(
        self, generation: Generation, planned: tuple[Plan, PieceLoss] | None
    ) -> Iterable[EpochColumns | None]:
        """Prove the schedules of a generation; return what each epoch's rank manifests should hold, None if nothing
        tells it."""
        if planned is None:
            return itertools.repeat(None)
        try:
            plan = repair.generation_plan(self._folder, generation, planned[0])
            prove_schedules(plan, generation)
        except (FormatError, PlanError) as error:
            path = (generation.schedules or self._manifest.plan).path
            if not self.report.is_damaged(path):
                self.report.add({path: without_remedy(error)}, self._deal_again)
            return itertools.repeat(None)
        return (EpochColumns(plan, schedule, planned[1]) for schedule in plan.epochs)

    def _check_packs(self, packs: PlannedPacks, progress: Progress | None) -> None:
        shards = [shard for shard in repair.shard_tasks(self._manifest) if not self.report.is_damaged(shard.name)]
        num_bytes = {shard.path: shard.num_bytes for shard in self._manifest.shards}
        sizes = [num_bytes[shard.name] for shard in shards]
        schema = self._manifest.schema
        faults = self._engine.find_faults(
            lambda shard: check_shard(self._folder, shard, packs, schema), shards, sizes, progress
        )
        found = {shard.name: why for shard, why in faults}
        self.report.add(found, self._write_all)
        pieces = packs.plan.pieces
        self.report.checked["packs"] = sum(shard.num_packs for shard in shards if shard.name not in found)
        self.report.checked["samples"] = int(pieces.num_samples(packs.plan.packs).sum())
        if pieces.of_items:
            self.report.checked["items"] = len(pieces)
        if packs.store is not None:
            self.report.checked["tokens"] = int(pieces.length.sum(dtype="int64"))

    def _note_strangers(self, known: set[str]) -> None:
        """Report files beside the set's own, which nothing reads."""
        for path in sorted(paths_below(self._folder / "shards") | paths_below(self._folder / "ranks")):
            name = path.relative_to(self._folder).as_posix()
            if name not in known and (is_remote(path) or not path.is_dir()):
                self.report.not_checked.append(f"{name}: not a file of the set; remove it if you do not need it")


_REMOVERS = {"s3": "aws s3 rm", "gs": "gcloud storage rm"}
"""Commands that remove an object, by the scheme of the storage."""


def _remove(path: Path | RemotePath) -> str:
    """Write the command that removes a file; for storage whose tool is not known, write what to do."""
    scheme, is_url, _ = str(path).partition("://")
    return f"{_REMOVERS.get(scheme, 'a tool that removes') if is_url else 'rm'} {path}"
