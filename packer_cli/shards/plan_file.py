"""`plan.arrow`: the plan as one row of large lists, with its configuration in the schema's metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer_cli.config import PlannedConfig
from packer_cli.errors import FormatError, InputError, PlanError
from packer_cli.files import HashingFile, atomic_file
from packer_cli.format.arrays import to_arrow, to_numpy
from packer_cli.format.checksums import require_damage
from packer_cli.format.entries import FileInfo
from packer_cli.format.metrics import Counts, GroupChoice, PlanMetrics
from packer_cli.format.ragged import offsets_of
from packer_cli.format.records import json_values, read_record
from packer_cli.format.versions import is_in_version
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cost import Cost, parse_cost
from packer_cli.plan.core.groups import UNLIMITED, Group, read_limits
from packer_cli.plan.core.types import Packs, PieceLoss, Pieces, Plan, Schedule
from packer_cli.remote.local import map_file, open_source

PLAN_VERSION = 9
_KEY = b"hbpack"
_DIGEST = "xxh3"


@dataclass(frozen=True, kw_only=True)
class PlanHeader:
    """The facts in `plan.arrow` beside the arrays."""

    fingerprint: str
    """Equal for plans with equal bytes."""
    store: str
    """Path of the token store, relative to the plan's folder."""
    store_fingerprint: str
    config: PlannedConfig
    group_choice: GroupChoice | None = None
    """The choice of automatic groups; None if you named them."""
    counts: Counts
    metrics: PlanMetrics

    @property
    def cost(self) -> Cost:
        """The cost that the plan evened out."""
        return parse_cost(self.config.cost)


def write_plan(path: Path, plan: Plan, piece_loss: PieceLoss, header: PlanHeader) -> None:
    """Write a plan atomically; one that was read gives the same bytes again."""
    arrays: dict[str, NDArray[Any]] = {
        **{f"piece_{name}": values for name, values in plan.pieces.columns().items()},
        "piece_loss_tokens": piece_loss.tokens,
        **({} if piece_loss.weights is None else {"piece_loss_weight": piece_loss.weights}),
        **{f"pack_{name}": values for name, values in vars(plan.packs).items()},
    }
    metadata = {
        "plan_version": PLAN_VERSION,
        "num_gpus": plan.num_gpus,
        "lockstep": plan.lockstep,
        "groups": [*map(vars, plan.groups)],
        **json_values(header),
        "config": header.config.decisions(),
    }
    _write_arrays(path, {**arrays, **_schedule_arrays(plan.epochs)}, metadata)


def write_schedules(folder: Path, path: str, plan: Plan, fingerprint: str, first_epoch: int) -> FileInfo:
    """Write the schedules of a plan whose packs stand elsewhere, atomically; describe the file for the manifest.

    Args:
        folder: of the set.
        path: of the file in it.
        fingerprint: of the generation that they are of.
    """
    facts = {"fingerprint": fingerprint, "num_gpus": plan.num_gpus, "first_epoch": first_epoch}
    metadata = {"plan_version": PLAN_VERSION, **facts}
    file = _write_arrays(folder / path, _schedule_arrays(plan.epochs), metadata)
    return FileInfo(path=path, num_bytes=file.num_bytes, xxh3=file.hexdigest())


def read_schedules(path: Path) -> tuple[tuple[Schedule, ...], str]:
    """Read what `write_schedules` wrote, memory-mapped: (schedules, fingerprint).

    Raises:
        FormatError: it is missing, damaged, or of another version.
    """
    with _opened(path, is_plan=False) as metadata:
        arrays = _read_arrays(path)
        _check_digest(arrays, metadata)
        return _schedules(arrays), metadata["fingerprint"]


def _schedule_arrays(epochs: Sequence[Schedule]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name in Schedule.__dataclass_fields__:
        of_epochs = [getattr(schedule, name) for schedule in epochs]
        if of_epochs[0] is not None:
            arrays[name] = np.concatenate(of_epochs)
    arrays["epoch_slots"] = offsets_of(np.array([len(schedule.slot_pack) for schedule in epochs]))
    arrays["epoch_iterations"] = offsets_of(np.array([schedule.num_iterations for schedule in epochs]))
    arrays["epoch_steps"] = offsets_of(np.array([schedule.num_steps for schedule in epochs]))
    return arrays


def _schedules(arrays: dict[str, NDArray[Any]]) -> tuple[Schedule, ...]:
    ends = {kind: arrays[f"epoch_{kind}s"] for kind in ("slot", "iteration", "step")}
    epochs = []
    for e in range(len(ends["slot"]) - 1):
        cut = {kind: slice(each[e], each[e + 1]) for kind, each in ends.items()}
        fields = {
            name: arrays[name][cut[name.split("_")[0]]] for name in Schedule.__dataclass_fields__ if name in arrays
        }
        epochs.append(Schedule(**fields))
    return tuple(epochs)


def _write_arrays(path: Path, arrays: dict[str, NDArray[Any]], metadata: dict[str, Any]) -> HashingFile:
    """Write one row of large lists, and in the header the checksum of row and header, as a flipped bit may make
    another valid plan."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {**metadata, _DIGEST: _digest(arrays, metadata)}
    columns, fields = [], []
    for name, array in arrays.items():
        values = to_arrow(array)
        kind = pa.large_list(pa.field("item", values.type, nullable=False))
        columns.append(pa.LargeListArray.from_arrays(to_arrow(np.array([0, len(array)])), values, type=kind))
        fields.append(pa.field(name, kind, nullable=False))
    schema = pa.schema(fields, metadata={_KEY: json.dumps(metadata, sort_keys=True).encode()})
    with atomic_file(path) as file, arrow_file(file, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return file


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    batch = pa.ipc.open_file(map_file(path)).get_batch(0)
    return {name: to_numpy(batch.column(name).values) for name in batch.schema.names}


def _digest(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> str:
    """Compute XXH3 (128 bits) of the arrays, which are contiguous, and the header. Price: one read, some GB/s."""
    digest = xxhash.xxh3_128(json.dumps(metadata, sort_keys=True).encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {len(array)}".encode())
        digest.update(array.view(np.uint8).data)
    return digest.hexdigest()


def _check_digest(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
    """Raise ValueError where what was read is not what was written."""
    found = _digest(arrays, {key: value for key, value in metadata.items() if key != _DIGEST})
    if found != metadata[_DIGEST]:
        raise ValueError(f"its checksum is {found}, its header says {metadata[_DIGEST]}")


def read_plan(path: Path, *, check: bool = False) -> tuple[Plan, PieceLoss]:
    """Read the arrays that `write_plan` wrote, memory-mapped: the plan, and the loss of its pieces.

    Args:
        check: compare the checksum, and prove the plan as the planner did, O(pieces + slots).

    Raises:
        InputError: there is no plan.
        FormatError: it is damaged, or of another version.
    """
    with _opened(path) as metadata:
        arrays = _read_arrays(path)
        if check:
            _check_digest(arrays, metadata)
        of_pieces = {name.removeprefix("piece_"): values for name, values in arrays.items()}
        plan = Plan(
            groups=tuple(Group(**group) for group in metadata["groups"]),
            num_gpus=metadata["num_gpus"],
            pieces=Pieces.of(of_pieces),
            packs=Packs(**{field.name: arrays[f"pack_{field.name}"] for field in fields(Packs)}),
            epochs=_schedules(arrays),
            max_samples=metadata["config"]["max_samples"] or UNLIMITED,
            limits=read_limits(metadata["config"].get("max_path_tokens")),
            mask=metadata["config"]["mask"],
            lockstep=metadata["lockstep"],
        )
        if check:
            check_plan(plan)
        return plan, PieceLoss(arrays["piece_loss_tokens"], arrays.get("piece_loss_weight"))


def check_plan_file(path: Path) -> None:
    """Compare the plan's checksum; the errors are those of `read_plan`. Price: one read."""
    with _opened(path) as metadata:
        _check_digest(_read_arrays(path), metadata)


def read_plan_header(path: Path) -> PlanHeader:
    """Read the facts of a plan beside the arrays; the errors are those of `read_plan`."""
    with _opened(path) as metadata:
        return read_record(PlanHeader, {name: metadata[name] for name in _HEADER if name in metadata})


_HEADER = [field.name for field in fields(PlanHeader)]
_DAMAGE = (KeyError, TypeError, ValueError, IndexError, SystemError, pa.ArrowException, OSError, PlanError)


@contextmanager
def _opened(path: Path, *, is_plan: bool = True) -> Iterator[dict[str, Any]]:
    """Read the JSON values beside the arrays, and turn damage that shows then or in the block into a FormatError."""
    remedy = f"run hbpack {'write' if is_in_version(path.parent) else 'plan'} again"
    if not is_plan:
        remedy = "run hbpack write, which makes the set as it was planned, and then hbpack rebalance"
    try:
        metadata = json.loads(pa.ipc.open_file(open_source(path)).schema.metadata[_KEY])
        version = metadata.get("plan_version")
        if version != PLAN_VERSION:
            versions = f"plan version {version}, this release reads {PLAN_VERSION}"
            if not is_plan:
                raise ValueError(f"it has {versions}")
            raise FormatError(
                f"{str(path)!r} has {versions}; run hbpack pack again, or hbpack plan on a token store of this release"
            )
        yield metadata
    except _DAMAGE as error:
        if is_plan and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise InputError(f"{str(path.parent)!r} holds no plan (no {path.name}); run hbpack plan") from None
        require_damage(error)
        why = "its description is not text" if isinstance(error, UnicodeError) else error
        raise FormatError(f"{str(path)!r} is damaged ({why}); {remedy}") from None


_BYTES_PER_WRITE = 2**20


@contextmanager
def arrow_file(file: HashingFile, schema: pa.Schema) -> Iterator[pa.RecordBatchWriter]:
    """Write an Arrow IPC file.

    Arrow writes each buffer of a column by itself, and most are short. A call into Python may wait for other threads,
    so short buffers are written together.
    """
    with (
        pa.BufferedOutputStream(pa.PythonFile(file, mode="w"), _BYTES_PER_WRITE) as buffered,
        pa.ipc.new_file(buffered, schema) as writer,
    ):
        yield writer
