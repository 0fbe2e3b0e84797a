"""Samples from wherever a user has them, and the plan options tried on them: `hbpack stats`, `hbpack compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packer_cli.config import PlanConfig
from packer_cli.corpus.discover import COMPRESSIONS, FORMATS
from packer_cli.errors import ConfigError, InputError
from packer_cli.plan.build import build_plan
from packer_cli.plan.check import check_plan
from packer_cli.plan.figures import length_stats, plan_stats, prove_by_program
from packer_cli.plan.samples import Samples, pieces_to_plan, sample_counts
from packer_cli.shards.manifest import MANIFEST_NAME, read_manifest
from packer_cli.shards.plan_file import PLAN_NAME, check_plan_file, read_plan, read_plan_header
from packer_cli.stages.lengths import read_lengths_file
from packer_cli.tokens.index import INDEX_NAME
from packer_cli.tokens.store import TokenStore

NAMED = "name a packed data set, a token store or a file of lengths"


def samples_of_store(store: TokenStore) -> Samples:
    """Everything in a token store."""
    weights = tuple(source.weight for source in store.index.sources)
    return Samples(lengths=store.lengths(), sources=store.sources(), weights=weights)


def find_samples(path: Path) -> Samples | None:
    """Samples of a file of lengths, of a token store, or of a packed set that keeps its tokens; else None.

    Raises:
        InputError: the path does not exist, or is a file and holds no lengths.
    """
    if not path.exists():
        raise InputError(f"{str(path)!r} does not exist; {NAMED}")
    if _is_corpus(path):
        raise InputError(f"{str(path)!r} is a corpus; run hbpack tokenize, and name its output")
    if path.is_file():
        return Samples(lengths=read_lengths_file(path))
    for folder in (path, path / "tokens"):
        if (folder / INDEX_NAME).exists():
            return samples_of_store(TokenStore.open(folder))
    return None


def require_samples(path: Path) -> Samples:
    """As `find_samples`; what has none is an error.

    Raises:
        ConfigError: a packed set has its plan already, and nothing to make another from.
        InputError: the path is nothing that has lengths.
    """
    samples = find_samples(path)
    if samples is not None:
        return samples
    if (path / PLAN_NAME).exists():
        raise ConfigError(f"{str(path)!r} is planned and keeps no tokens; leave out --groups and --gpus")
    raise InputError(f"{str(path)!r} is not a packed data set (hbpack.json), plan, token store, or file of lengths")


def compared_samples(inputs: Sequence[str]) -> Samples:
    """Samples of the one thing that `hbpack compare` is given without a tokenizer.

    Raises:
        ConfigError: several inputs, or a corpus.
        InputError: nothing that has lengths.
    """
    if len(inputs) != 1:
        raise ConfigError("several inputs are a corpus, which needs --tokenizer" if inputs else "INPUT is required")
    path = Path(inputs[0])
    if not path.exists():
        raise InputError(f"{inputs[0]!r} does not exist; {NAMED}, or a corpus and its --tokenizer")
    if _is_corpus(path):
        raise ConfigError(f"{inputs[0]!r} is a corpus, which needs --tokenizer")
    samples = find_samples(path)
    if samples is None and (path / PLAN_NAME).exists():
        raise InputError(f"{inputs[0]!r} is planned and keeps no tokens, so there is nothing to plan; {NAMED}")
    if samples is None:
        raise InputError(f"{inputs[0]!r} is not a token store; {NAMED}, or give --tokenizer if it is a corpus")
    return samples


def _is_corpus(path: Path) -> bool:
    """Whether a file is one by its name; text may be lengths."""
    return path.is_file() and (FORMATS.get(path.suffix, "text") != "text" or path.suffix in COMPRESSIONS)


def refuse_known_lengths(inputs: Sequence[str]) -> None:
    """What has lengths already is not a corpus; ConfigError."""
    for name in inputs:
        path = Path(name)
        if path.suffix == ".npy" or any((path / folder / INDEX_NAME).exists() for folder in (".", "tokens")):
            raise ConfigError(f"{name!r} has its lengths already and is not a corpus; leave out --tokenizer")


def stats_of(path: Path, config: PlanConfig | None, *, by_program: bool = False) -> dict[str, Any]:
    """JSON values; see `plan.figures.plan_stats` for the keys.

    Args:
        by_program: as `plan.figures.prove_by_program` does.

    Raises:
        InputError: the path is nothing that has lengths.
        ConfigError: a packed set has its plan already, so it takes no plan options.
    """
    if path.name == PLAN_NAME and path.is_file():
        path = path.parent
    if config is None and (path / PLAN_NAME).exists():
        check_plan_file(path / PLAN_NAME)
        header = read_plan_header(path / PLAN_NAME)
        manifest = read_manifest(path) if (path / MANIFEST_NAME).exists() else None
        metrics = manifest.metrics if manifest and manifest.history else header["metrics"]
        if by_program:
            prove_by_program(metrics, read_plan(path / PLAN_NAME, check=True)[0])
        return {"counts": header["counts"], **metrics}
    samples = require_samples(path)
    stats: dict[str, Any] = {"lengths": length_stats(samples.lengths)}
    if config is None:
        return stats
    from packer_cli.config.rules import plan_rules

    if config.is_auto:
        from packer_cli.stages.groups import resolve

        config, stats["group_choice"] = resolve(config, samples.epoch_lengths(config.seed))
    rules = plan_rules(config)
    capacity = rules.groups[-1].capacity
    plan = build_plan(pieces_to_plan(samples, capacity, config.overflow, config.seed), rules)
    check_plan(plan)
    stats["counts"] = sample_counts(
        samples.lengths, samples.chosen(config.seed), plan.pieces, capacity, config.overflow
    )
    metrics = plan_stats(plan, config.seed, samples.sources, rules.linear)
    if by_program:
        prove_by_program(metrics, plan)
    return {**stats, **metrics}
