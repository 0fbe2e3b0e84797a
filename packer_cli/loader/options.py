"""Check the arguments of `PackedDataset`: those that stand alone, before anything is read, and the rank."""

from __future__ import annotations

import operator
from typing import Any, get_args

from packer_cli.errors import ConfigError
from packer_cli.loader.batch import SP_SHARDINGS, PadTo
from packer_cli.loader.storage import VERIFY


def as_integer(name: str, value: Any, example: str = "") -> int:
    """The number that an argument stands for; integers of numpy and torch are some too.

    Args:
        example: what gives the number where it was read from the environment, as text.

    Raises:
        TypeError: it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        remedy = f"; write {example or f'int({value!r})'}" if isinstance(value, str) else ""
        raise TypeError(f"{name} is {value!r}: it must be an integer{remedy}") from None


def check_options(
    *,
    sp_sharding: str | None,
    pad_to: str,
    pad_to_multiple_of: int,
    pad_token_id: int | None,
    verify: str,
    cache_bytes: int,
    prefetch: int,
) -> None:
    """Raise TypeError or ValueError, which name the value and the rule, where one is wrong."""
    if sp_sharding not in (None, *SP_SHARDINGS):
        raise ValueError(f"sp_sharding is {sp_sharding!r}: choose one of {', '.join(SP_SHARDINGS)}")
    if pad_to not in get_args(PadTo):
        raise ValueError(f"pad_to is {pad_to!r}: choose one of {', '.join(get_args(PadTo))}")
    if as_integer("pad_to_multiple_of", pad_to_multiple_of) < 1:
        raise ValueError(f"pad_to_multiple_of is {pad_to_multiple_of}: it must be at least 1")
    if pad_token_id is not None:
        as_integer("pad_token_id", pad_token_id)
    if verify not in VERIFY:
        raise ValueError(f"verify is {verify!r}: choose one of {', '.join(VERIFY)}")
    if as_integer("cache_bytes", cache_bytes, "64 * 2**30") < 0:
        raise ValueError(f"cache_bytes is {cache_bytes}: it must not be negative")
    if as_integer("prefetch", prefetch) < 0:
        raise ValueError(f"prefetch is {prefetch}: it must not be negative")


def check_rank(rank: Any, world_size: Any, num_gpus: int, name: str) -> tuple[int, int]:
    """(rank, world_size), which fit a packed set for so many GPUs.

    Args:
        name: of the packed set, for messages.

    Raises:
        ConfigError: it was planned for another number of GPUs.
        TypeError, ValueError: there is no such rank.
    """
    rank = as_integer("rank", rank, "int(os.environ['RANK'])")
    world_size = as_integer("world_size", world_size, "int(os.environ['WORLD_SIZE'])")
    if world_size != num_gpus:
        raise ConfigError(
            f"{name} was planned for {num_gpus} GPUs and world_size is {world_size}: "
            f"run hbpack rebalance --gpus {world_size}, or plan again with --gpus {world_size}"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}: it must be from 0 to {world_size - 1}")
    return rank, world_size
