"""A packed set written straight from docs/formats.md, independent of the production writer."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from packer_cli.format.constants import FORMAT_VERSION
from packer_cli.format.entries import GroupInfo
from tests.naive import loss_spans

PAD, EOS, VOCAB_SIZE = 1, 2, 1000
PACKS_PER_SHARD = 40  # record batches of 16, 16 and 8 packs

COUNTS = (
    "records", "rejected", "samples", "left_out_by_weight", "repeated_by_weight", "split", "truncated", "dropped",
    "pieces", "tokens", "records_with_special_tokens",
)  # fmt: skip
METRICS = {
    **dict.fromkeys(("dbr", "pr", "abr", "abr_bound", "cr", "ave_t", "imbalance"), 0.0),
    **dict.fromkeys(("num_samples", "num_tokens", "num_packs", "packs_lower_bound", "num_iterations"), 0),
    "num_fillers": 0,
}
RANDOMNESS = {
    **dict.fromkeys(("num_steps", "max_displacement"), 0),
    **dict.fromkeys(("mean_displacement", "length_step_correlation", "length_mix_spread", "source_mix_spread"), 0.0),
}

SHARD_SCHEMA = pa.schema(
    [
        pa.field(name, pa.list_(pa.field("item", kind[0], nullable=False)) if isinstance(kind, list) else kind, False)
        for name, kind in {
            "pack_id": pa.int64(),
            "group": pa.int16(),
            "sp_size": pa.int16(),
            "checkpoint_layers": pa.int16(),
            "num_tokens": pa.int32(),
            "num_loss_tokens": pa.int32(),
            "attention_work": pa.int64(),
            "cost": pa.float64(),
            "cp_sharding": pa.int8(),
            "checksum": pa.uint64(),
            "cu_seqlens": [pa.int32()],
            "sample_ids": [pa.int64()],
            "sample_starts": [pa.int32()],
            "source_ids": [pa.int32()],
            "loss_starts": [pa.int32()],
            "loss_stops": [pa.int32()],
            "input_ids": [pa.uint16()],
        }.items()
    ]
)
ITERATION_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("num_replicas", pa.int32(), nullable=False),
        pa.field("global_num_packs", pa.int64(), nullable=False),
        pa.field("global_num_samples", pa.int64(), nullable=False),
        pa.field("global_num_tokens", pa.int64(), nullable=False),
        pa.field("global_num_loss_tokens", pa.int64(), nullable=False),
    ]
)
RANK_SCHEMA = pa.schema(
    [
        pa.field("iteration", pa.int64(), nullable=False),
        pa.field("pack", pa.int64(), nullable=False),
        pa.field("group", pa.int16(), nullable=False),
        pa.field("first_gpu", pa.int32(), nullable=False),
        pa.field("dp_rank", pa.int32(), nullable=False),
        pa.field("row_length", pa.int32(), nullable=False),
    ]
)


@dataclass
class Sample:
    id: int
    tokens: list[int]
    mask: list[int]


@dataclass
class TestPack:
    __test__ = False
    id: int
    group: int
    shard: int
    row: int
    samples: list[Sample]

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.samples)

    @property
    def num_loss_tokens(self) -> int:
        return sum(sum(s.mask) for s in self.samples)


@dataclass
class PackedSet:
    """The set on disk and what went into it."""

    path: Path
    num_gpus: int
    groups: list[tuple[int, int]]  # capacity, sp_size
    packs: list[TestPack]
    samples: dict[int, Sample]
    # epoch -> iterations, each a step and its slots (pack or None, group, sp_size)
    epochs: list[list[tuple[int, list[tuple[TestPack | None, int, int]]]]] = field(default_factory=list)
    pad: int = PAD

    def edit_manifest(self, **changes: object) -> None:
        """Change keys of hbpack.json; `...` removes one."""
        file = self.path / "hbpack.json"
        manifest = json.loads(file.read_text()) | changes
        write_manifest(file, {k: v for k, v in manifest.items() if v is not ...})

    def rewrite(self, path: str, table: pa.Table) -> None:
        """Put another table in the place of a file, with checksums and identity as they should be."""
        if set(SHARD_SCHEMA.names) == set(table.column_names):
            rows = [{**row, "checksum": row_checksum(row)} for row in table.to_pylist()]
            table = pa.Table.from_pylist(rows, schema=SHARD_SCHEMA)
        fingerprint = json.loads((self.path / "hbpack.json").read_text())["fingerprint"]
        write_ipc(self.path, path, table.combine_chunks(), 16 if path.startswith("shards") else 1000, fingerprint)
        update_checksums(self.path)


def group_of(capacity: int, sp_size: int = 1) -> GroupInfo:
    """What the manifest says of a group, without packs."""
    counts = dict.fromkeys(("num_packs", "num_samples", "most_samples", "num_tokens", "num_loss_tokens"), 0)
    return GroupInfo(name="g0", capacity=capacity, sp_size=sp_size, checkpoint_layers=0, shards=(), **counts)


def write_manifest(file: Path, manifest: dict) -> None:
    text = json.dumps({key: value for key, value in manifest.items() if key != "xxh3"}, indent=2)
    body = text.removesuffix("\n}") + ',\n  "xxh3": "'
    file.write_text(body + xxhash.xxh3_128_hexdigest(body.encode()) + '"\n}\n')


def update_checksums(folder: Path) -> None:
    """Have hbpack.json say of each file what it is now, and the set's, if the folder is its current version's."""
    file = folder / "hbpack.json"
    manifest = json.loads(file.read_text())
    for group in manifest["groups"]:
        for shard in group["shards"]:
            data = (folder / shard["path"]).read_bytes()
            shard |= {"xxh3": xxhash.xxh3_128_hexdigest(data), "num_bytes": len(data)}
    for epoch in manifest["epochs"]:
        common = folder / epoch["path"] / "iterations.arrow"
        epoch["iterations_xxh3"] = xxhash.xxh3_128_hexdigest(common.read_bytes())
        epoch["ranks"] = [
            {"first": rank, "last": rank, "xxh3": xxhash.xxh3_128_hexdigest(path.read_bytes())}
            for rank, path in enumerate(sorted((folder / epoch["path"]).glob("rank-*.arrow")))
        ]
    if "plan" in manifest and (folder / "plan.arrow").exists():
        data = (folder / "plan.arrow").read_bytes()
        manifest["plan"] |= {"xxh3": xxhash.xxh3_128_hexdigest(data), "num_bytes": len(data)}
    write_manifest(file, manifest)
    copy = folder.parent / "hbpack.json"
    if copy.exists() and json.loads(copy.read_text()).get("folder") == folder.name:
        write_manifest(copy, {**manifest, "folder": folder.name})


def row_checksum(row: dict, schema: pa.Schema = SHARD_SCHEMA) -> int:
    """Of the numbers of a row, then the items of its lists, in the order of the columns."""
    numbers, lists = b"", b""
    for column in schema:
        value = row.get(column.name)
        if pa.types.is_list(column.type):
            code = {"int64": "q", "int32": "i", "uint16": "H", "int16": "h", "int8": "b", "float": "f"}[
                str(column.type.value_type)
            ]
            lists += struct.pack(f"<{len(value)}{code}", *value)
        elif column.name != "checksum":
            code = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "double": "d"}[str(column.type)]
            numbers += struct.pack(f"<{code}", value)
    return xxhash.xxh3_64_intdigest(numbers + lists)


def write_ipc(folder: Path, name: str, table: pa.Table, rows: int, fingerprint: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    table = table.replace_schema_metadata({"hbpack": json.dumps({"set": fingerprint, "path": name})})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for start in range(0, table.num_rows, rows):
            # Combined, so that a slice is one record batch whose offsets begin at 0.
            writer.write_table(table.slice(start, rows).combine_chunks())


def write_shards(packed: PackedSet, fingerprint: str) -> list[dict]:
    groups = []
    for g, (capacity, sp) in enumerate(packed.groups):
        name = f"g{g}-{capacity}-sp{sp}"
        shards = []
        mine = [p for p in packed.packs if p.group == g]
        for number, start in enumerate(range(0, len(mine), PACKS_PER_SHARD)):
            packs = mine[start : start + PACKS_PER_SHARD]
            rows = []
            for row, p in enumerate(packs):
                p.shard, p.row = number, row
                lengths = [len(s.tokens) for s in p.samples]
                starts, stops = loss_spans.spans_of([m for s in p.samples for m in s.mask])
                values = {
                    "pack_id": p.id,
                    "input_ids": [t for s in p.samples for t in s.tokens],
                    "loss_starts": starts,
                    "loss_stops": stops,
                    "cu_seqlens": [0, *np.cumsum(lengths).tolist()],
                    "sample_ids": [s.id for s in p.samples],
                    "sample_starts": [0] * len(p.samples),
                    "source_ids": [0] * len(p.samples),
                    "group": g,
                    "sp_size": sp,
                    "checkpoint_layers": g,
                    "num_tokens": p.num_tokens,
                    "num_loss_tokens": p.num_loss_tokens,
                    "attention_work": sum(n * n for n in lengths),
                    "cost": float(sum(n * n for n in lengths)),
                    "cp_sharding": 0,
                }
                rows.append({**values, "checksum": row_checksum(values)})
            path = f"shards/{name}/shard-{number:05d}.arrow"
            write_ipc(packed.path, path, pa.Table.from_pylist(rows, schema=SHARD_SCHEMA), 16, fingerprint)
            shards.append(
                {
                    "path": path,
                    "first_pack": packs[0].id,
                    "num_packs": len(packs),
                }
            )
        group = {
            "name": name,
            "capacity": capacity,
            "sp_size": sp,
            "checkpoint_layers": g,
            "align": 1,
            "num_packs": len(mine),
            "num_samples": sum(len(p.samples) for p in mine),
            "most_samples": max((len(p.samples) for p in mine), default=0),
            "num_tokens": sum(p.num_tokens for p in mine),
            "num_loss_tokens": sum(p.num_loss_tokens for p in mine),
            "shards": shards,
        }
        groups.append(group)
    return groups


def write_ranks(packed: PackedSet, epoch: int, fingerprint: str) -> dict:
    iterations = packed.epochs[epoch]
    counts: dict[int, list[int]] = {}
    for step, slots in iterations:
        total = counts.setdefault(step, [0, 0, 0, 0])
        for pack, _, _ in slots:
            if pack is not None:
                total[0] += 1
                total[1] += len(pack.samples)
                total[2] += pack.num_tokens
                total[3] += pack.num_loss_tokens
    rows: list[list[dict]] = [[] for _ in range(packed.num_gpus)]
    for i, (_, slots) in enumerate(iterations):
        rank = 0
        row_length = max([p.num_tokens for p, _, _ in slots if p is not None], default=8)
        for slot, (pack, group, sp) in enumerate(slots):
            first = rank
            for _ in range(sp):
                rows[rank].append(
                    {
                        "iteration": i,
                        "pack": -1 if pack is None else pack.id,
                        "group": group,
                        "first_gpu": first,
                        "dp_rank": slot,
                        "row_length": row_length,
                    }
                )
                rank += 1
        assert rank == packed.num_gpus
    folder = f"ranks/epoch-{epoch:03d}"
    names = [field.name for field in ITERATION_SCHEMA]
    common = [dict(zip(names, (step, len(slots), *counts[step]), strict=True)) for step, slots in iterations]
    table = pa.Table.from_pylist(common, schema=ITERATION_SCHEMA)
    write_ipc(packed.path, f"{folder}/iterations.arrow", table, 1000, fingerprint)
    for rank, mine in enumerate(rows):
        table = pa.Table.from_pylist(mine, schema=RANK_SCHEMA)
        write_ipc(packed.path, f"{folder}/rank-{rank:05d}.arrow", table, 1000, fingerprint)
    return {"path": folder, "num_iterations": len(iterations), "num_steps": iterations[-1][0] + 1}


def replicas(packed: PackedSet) -> list[dict]:
    found = set()
    for _, slots in (iteration for epoch in packed.epochs for iteration in epoch):
        rank = 0
        for _, _, sp in slots:
            found.add((sp, rank))
            rank += sp
    degrees = sorted({sp for sp, _ in found if sp > 1})
    return [{"sp_size": d, "first_gpus": sorted(first for sp, first in found if sp == d)} for d in degrees]


def schedule(packed: PackedSet, rng: np.random.Generator, extra_filler: bool) -> None:
    """Deal the packs to iterations and steps, with fillers at the ends of groups and one iteration of two degrees."""
    iterations: list[list[tuple[TestPack | None, int, int]]] = []
    queues = [[p for p in packed.packs if p.group == g] for g in range(len(packed.groups))]
    for queue in queues:
        rng.shuffle(queue)  # type: ignore[arg-type]
    if packed.num_gpus >= 4 and len(queues) > 1 and len(queues[0]) > 1 and queues[1]:
        iterations.append([(queues[1].pop(), 1, 2), (queues[0].pop(), 0, 1), (queues[0].pop(), 0, 1)])
    for g, queue in enumerate(queues):
        sp = packed.groups[g][1]
        width = packed.num_gpus // sp
        for start in range(0, len(queue), width):
            slots: list[TestPack | None] = [*queue[start : start + width]]
            slots += [None] * (width - len(slots))
            iterations.append([(p, g, sp) for p in slots])
    if extra_filler:
        sp = packed.groups[-1][1]
        iterations.append([(None, len(packed.groups) - 1, sp)] * (packed.num_gpus // sp))
    rng.shuffle(iterations)  # type: ignore[arg-type]
    steps = np.sort(rng.integers(0, max(1, len(iterations) // 2), len(iterations)))
    steps = np.unique(steps, return_inverse=True)[1]
    packed.epochs.append([(int(s), slots) for s, slots in zip(steps, iterations, strict=True)])


def write_set(
    path: Path,
    groups: list[tuple[int, int, int]] = [(64, 1, 91), (128, 2, 22), (256, 4, 5)],  # noqa: B006
    num_gpus: int = 4,
    num_epochs: int = 2,
    seed: int = 0,
    fingerprint: str = "fp-0",
) -> PackedSet:
    """Write a set with groups (capacity, sp_size, packs) of random samples."""
    rng = np.random.default_rng(seed)
    packed = PackedSet(path, num_gpus, [(c, sp) for c, sp, _ in groups], [], {})
    for g, (capacity, _, num_packs) in enumerate(groups):
        for _ in range(num_packs):
            left, samples = capacity, []
            while left > 0 and (not samples or rng.random() < 0.8):
                length = int(rng.integers(1, left + 1)) if rng.random() < 0.9 else left
                sample = Sample(
                    len(packed.samples),
                    rng.integers(3, VOCAB_SIZE, length).tolist(),
                    [0, *rng.integers(0, 2, length - 1).tolist()],
                )
                packed.samples[sample.id] = sample
                samples.append(sample)
                left -= length
            packed.packs.append(TestPack(len(packed.packs), g, 0, 0, samples))
    manifest_groups = write_shards(packed, fingerprint)
    epochs = []
    for epoch in range(num_epochs):
        schedule(packed, rng, extra_filler=epoch == 1)
        epochs.append(write_ranks(packed, epoch, fingerprint))
    manifest = {
        "format": "hbpack",
        "format_version": FORMAT_VERSION,
        "hbpack_version": "0",
        "fingerprint": fingerprint,
        "seed": 17,
        "num_gpus": num_gpus,
        "groups": manifest_groups,
        "replicas": replicas(packed),
        "epochs": epochs,
        "plan": {"path": "plan.arrow", "num_bytes": 0, "xxh3": "0" * 32},
        "rejected": None,
        "tokenizer": {"name": "test", "vocab_size": VOCAB_SIZE, "pad_token_id": PAD, "eos_token_id": EOS},
        "sources": [],
        "counts": dict.fromkeys(COUNTS, 0),
        "metrics": {"overall": METRICS | RANDOMNESS, "groups": [], "baseline": {"name": "none", **METRICS}},
        "config": {"tokens": {}, "plan": {}, "write": {"shard_size": 0}},
        "library_versions": {},
    }
    write_manifest(path / "hbpack.json", manifest)
    update_checksums(path)
    return packed
