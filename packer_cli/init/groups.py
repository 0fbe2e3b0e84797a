"""Which length groups to write into a config: by a rule of thumb, or the fastest for a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.config import PlanConfig, validate
from packer_cli.plan.core.groups import divisors
from packer_cli.sizes import format_tokens, four_digits

_A_GPU = 16384
"""Tokens of a row on each GPU: HBP's tables end with 16k:1 and 128k:8 for 7B models on 80 GB."""
_LEAST = 8192
"""Shorter rows leave a GPU idle."""


def propose_groups(lengths: NDArray[np.int32], num_gpus: int) -> tuple[list[str], str]:
    """Groups as `--groups` takes them, and why.

    One group, or a second one for samples that one GPU does not hold: as many GPUs share its rows as leave each at
    most 16k tokens. Samples that all of them do not hold so are longer than the groups.

    Args:
        lengths: int32[n], of a sample; may be empty.

    >>> propose_groups(np.array([100, 20_000, 100_000], dtype=np.int32), 8)[0]
    ['16k:1', '128k:8']
    """
    if not len(lengths):
        return ["16k:1"], "No length is known: rows of 16k tokens, each on one GPU."
    longest = int(lengths.max())
    capacity = 1 << (longest - 1).bit_length()
    if capacity <= _A_GPU:
        capacity = max(capacity, _LEAST)
        return [f"{format_tokens(capacity)}:1"], f"One GPU holds the longest sample seen, {longest:,} tokens."
    wanted = capacity // _A_GPU
    degree = next((each for each in divisors(num_gpus) if each >= wanted), num_gpus)
    capacity = min(capacity, _A_GPU * degree)
    groups = [f"{format_tokens(_A_GPU)}:1", f"{format_tokens(capacity)}:{degree}"] if degree > 1 else ["16k:1"]
    why = f"Rows of 16k tokens run on one GPU each. The longest sample seen has {longest:,} tokens"
    if degree > 1:
        why += f", so {degree} GPUs share a long row"
    num_long = int((lengths > capacity).sum())
    if num_long:
        why += f", and {num_long / len(lengths):.1%} are over {format_tokens(capacity)}, which {num_gpus} GPUs hold"
    return groups, f"{why}."


def fastest_groups(values: Mapping[str, Any], lengths: NDArray[np.int32]) -> tuple[list[str], str]:
    """Groups as `--groups` takes them with the shortest predicted epoch, and why.

    Samples that no row in memory holds are longer than the groups.

    Args:
        values: plan options with a model, a GPU and a number of GPUs.
        lengths: int32[n], of a sample, n > 0.

    Raises:
        UsageError: an option is wrong, or memory is full before any sample.
    """
    from packer_cli.groups.auto import choose, load_models
    from packer_cli.groups.settings import longest_that_fits

    config = validate(PlanConfig, values)
    model, _ = load_models(config, config.gpus, "hbpack init")
    fits = longest_that_fits(model, model.layouts(config.gpus, config.layout)) if model else 0
    longest = int(lengths.max())
    most = fits // 1024 * 1024 or fits if 0 < fits < longest else longest
    if most < longest:
        config = validate(PlanConfig, {**values, "max_length": most})
    _, record = choose(config, lengths, config.gpus, config.overflow, "hbpack init")
    seconds = "" if record.seconds is None else f": {four_digits(record.seconds)} s for {record.tokens:,} tokens"
    why = f"The shortest predicted epoch of the sample{seconds}"
    others = [each for each in record.alternatives if each.groups != record.groups and each.gain > 0]
    if others:
        why += f"; {others[0].groups} takes {others[0].gain:.1%} longer"
    limit = ""
    if most < longest:
        share = float((lengths > most).mean())
        why += f". Memory holds rows of {format_tokens(most)} tokens, and {share:.1%} of the records are longer"
        limit = f" and `max-length: {format_tokens(most)}`"
    return record.groups.split(","), f"{why}. Write `groups: auto`{limit} to choose by all of the data."
