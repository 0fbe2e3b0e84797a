"""Sets with trees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packer_cli.format.arrays import Lists, columns_of, to_arrow
from packer_cli.format.checksums import CHECKSUM, file_checksum, row_checksums
from packer_cli.format.schema import RowColumns, identify
from packer_cli.format.trees import PAIR
from tests.loader.packed_set import write_manifest
from tests.reference import home
from tests.trees import Item, row_of


def put_trees(folder: Path, packs: Sequence[Sequence[Item]]) -> None:
    """Replace the packs of a flat set of one shard, as many, with these."""
    folder = home(folder)
    path = next(folder.glob("shards/*/*.arrow"))
    manifest = json.loads((folder / "hbpack.json").read_text())
    old = pa.ipc.open_file(path).read_all()
    assert old.num_rows == len(packs) <= 16
    found = [row_of(items) for items in packs]
    schema = RowColumns(of_items=True).shard(old.schema.field("input_ids").type.value_type)
    columns: dict[str, Any] = {}
    for field in schema.remove(schema.get_field_index(CHECKSUM)):
        if field.name not in found[0]:
            columns[field.name] = old[field.name].combine_chunks()
        elif pa.types.is_list(field.type):
            values = [row[field.name] for row in found]
            offsets = np.cumsum([0, *map(len, values)])
            columns[field.name] = to_arrow(
                Lists(offsets, np.concatenate(values).astype(field.type.value_type.to_pandas_dtype()))
            )
        else:
            columns[field.name] = pa.array([row[field.name] for row in found], field.type)
    schema = identify(schema, manifest["fingerprint"], str(path.relative_to(folder)))
    batch = pa.record_batch(columns, schema=schema.remove(schema.get_field_index(CHECKSUM)))
    columns[CHECKSUM] = pa.array(row_checksums(columns_of(batch)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    shard = manifest["groups"][0]["shards"][0]
    shard |= {"num_bytes": path.stat().st_size, "xxh3": file_checksum(path)}
    kinds = [item.kind for items in packs for item in items]
    pieces = {"samples": len(kinds), "left_out_by_weight": 0, "dropped": 0}
    manifest["counts"] |= {**pieces, "items": {"pairs": kinds.count(PAIR)}}
    write_manifest(folder / "hbpack.json", manifest)
