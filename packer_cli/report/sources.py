"""`hbpack stats PATH`: find out what the path is, and report it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.config import PlanConfig
from packer_cli.errors import ConfigError, InputError, RunError
from packer_cli.plan.build import build_plan
from packer_cli.plan.check import check_plan
from packer_cli.plan.pieces import make_pieces
from packer_cli.plan.types import Int32Array
from packer_cli.report.lengths import read_lengths_file
from packer_cli.report.stats import length_stats, plan_stats
from packer_cli.shards.plan_file import PLAN_NAME, read_plan_header
from packer_cli.tokens.index import INDEX_NAME
from packer_cli.tokens.store import TokenStore


def stats_of(path: Path, config: PlanConfig | None) -> dict[str, Any]:
    """JSON values; see `report.stats.plan_stats` for the keys.

    Raises:
        InputError: the path is nothing that has lengths.
        ConfigError: a packed set has its plan already, so it takes no plan options.
    """
    if not path.exists():
        raise InputError(f"{str(path)!r} does not exist; name a packed data set, a token store or a file of lengths")
    if path.is_file():
        return _of_lengths(read_lengths_file(path), None, config)
    if (path / PLAN_NAME).exists() and config is None:
        header = read_plan_header(path / PLAN_NAME)
        return {"counts": header["counts"], **header["metrics"]}
    for folder in (path, path / "tokens"):
        if (folder / INDEX_NAME).exists():
            store = TokenStore.open(folder)
            return _of_lengths(store.lengths(), store.sources(), config)
    if (path / PLAN_NAME).exists():
        raise ConfigError(f"{str(path)!r} is planned and keeps no tokens; leave out --groups and --gpus")
    raise InputError(f"{str(path)!r} is no packed data set (hbpack.json), plan, token store, or file of lengths")


def _of_lengths(lengths: Int32Array, sources: Int32Array | None, config: PlanConfig | None) -> dict[str, Any]:
    stats: dict[str, Any] = {"lengths": length_stats(lengths)}
    if config is None:
        return stats
    from packer_cli.planning import plan_rules

    rules = plan_rules(config)
    capacity = rules.groups[-1].capacity
    if config.overflow == "error" and int(lengths.max(initial=0)) > capacity:
        raise RunError(
            f"the longest sample has {lengths.max()} tokens, over the largest group's {capacity}; "
            "choose --overflow split, truncate or drop"
        )
    pieces = make_pieces(lengths, np.arange(len(lengths), dtype=np.int64), capacity, config.overflow)
    if not len(pieces):
        raise RunError("there is nothing to plan: no length is left")
    plan = build_plan(pieces, rules)
    check_plan(plan)
    return {**stats, **plan_stats(plan, config.seed, sources)}
