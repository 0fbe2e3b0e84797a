"""What plans and packed sets hold, as one number each: the same whatever libraries are installed.

Predicted seconds, which no plan depends on, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.ipc as ipc
import xxhash

from packer_cli.plan.core.types import Plan
from tests.reference import home


def lengths_of_all_sizes() -> np.ndarray:
    """1,200 lengths (int64): most below 1,000, one in 20 up to 8,192, and two longer."""
    generator = np.random.default_rng(28)
    lengths = np.clip(generator.lognormal(5, 1, 1200), 1, 1024).astype(np.int64)
    lengths[::20] = generator.integers(1000, 8193, 60)
    lengths[[17, 503]] = 9000, 12345
    return lengths


def hash_of_plan(plan: Plan) -> str:
    """Every array and number of it."""
    facts = repr((plan.groups, plan.num_gpus, plan.lockstep, plan.max_samples, plan.mask))
    found = xxhash.xxh3_64(facts.replace(", vpp_size=1", "").encode())  # A later field, where it is at its default.
    found.update(repr(plan.delays and (plan.delays.thresholds, plan.delays.num_carried)).encode())
    arrays = [plan.pieces.sample, plan.pieces.start, plan.pieces.length, *vars(plan.packs).values()]
    arrays += [plan.delays.arrival] if plan.delays else []
    for schedule in plan.epochs:
        arrays += [array for name, array in vars(schedule).items() if name != "step_seconds"]
    for array in arrays:
        found.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def hash_of_set(folder: Path) -> str:
    """The rows of its plan, shards and ranks, and what its manifest says of options, metrics and generations."""
    folder, found = home(folder), xxhash.xxh3_64()
    for path in sorted(each for each in folder.rglob("*.arrow") if "tokens" not in each.parts):
        found.update(path.relative_to(folder).as_posix().encode())
        found.update(_text(_columns(path)))
    manifest = json.loads((folder / "hbpack.json").read_text())
    (manifest.get("origin") or {}).pop("fingerprint", None)  # It and checksums depend on pyarrow's version.
    manifest["config"]["plan"].pop("gpu_model", None)
    if manifest["config"]["tokens"]["keep_columns"] is None:  # A later field, where it is at its default.
        del manifest["config"]["tokens"]["keep_columns"]
    kept = ("config", "metrics", "origin", "first_epoch", "num_gpus")
    found.update(_text({name: manifest.get(name) for name in kept}))
    return found.hexdigest()


def _columns(path: Path) -> Iterable[Any]:
    table = ipc.open_file(path.read_bytes()).read_all()
    return [
        [name, str(column.type), column.to_pylist()]
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name != "step_seconds"
    ]


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
