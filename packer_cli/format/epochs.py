"""Which epoch was written, and the order of those that were not: whole steps of a written one, in another order.

The loader reads them so, and a change of the number of GPUs must know what it has read: one definition for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packer_cli.errors import ConfigError

if TYPE_CHECKING:  # The command line takes the greatest epoch from here, and its help answers at once.
    import numpy as np
    from numpy.typing import NDArray

MAX_EPOCH = 2**31 - 1
"""The greatest number of an epoch; the one after it still fits the 32 bits that a stream has for it."""

# Keeps this random stream apart from those of the plan, which has the same seed.
_STREAM = 0x4C4F_4144 << 32


def find_epoch(
    epoch: int, first_epoch: int, first_steps: Sequence[int], num_gpus: int, name: str = "epoch"
) -> tuple[int, bool]:
    """Which of the written epochs an epoch is or repeats, and whether it is that one itself.

    Args:
        first_epoch: number of the first that was written.
        first_steps: of each that was written, the steps that ran before it on another number of GPUs. Only an epoch
            without such steps is whole, and only a whole one is repeated.
        num_gpus: for messages.
        name: what asked for the epoch, for messages.

    Raises:
        ConfigError: the epoch was over before the first one that was written, or there is no whole one to repeat.

    >>> find_epoch(1, 1, [5, 0], 8), find_epoch(7, 1, [5, 0], 8)
    ((0, True), (1, False))
    """
    if epoch < first_epoch:
        raise ConfigError(
            f"{name} {epoch} was over when the set was dealt to {num_gpus} GPUs; choose {first_epoch} or a later one"
        )
    if epoch - first_epoch < len(first_steps):
        return epoch - first_epoch, True
    for number, first_step in enumerate(first_steps):
        if not first_step:
            return number, False
    raise ConfigError(f"{name} {epoch} would repeat a whole epoch, and this set holds none; choose one that it holds")


def repeat_order(seed: int, epoch: int, num_steps: int) -> NDArray[np.int64]:
    """The steps (int64[s]) of the repeated epoch in the order in which `epoch` runs them; a seeded permutation.

    >>> repeat_order(0, 1, 4).tolist() == repeat_order(0, 2, 4).tolist()
    False
    """
    import numpy as np

    key = np.array([seed % 2**64, _STREAM | epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_steps)


def repeat_iterations(seed: int, epoch: int, step: NDArray[np.integer]) -> NDArray[np.int64]:
    """The iterations (int64[i]) of the repeated epoch in the order in which `epoch` runs them.

    The iterations of a step stay together, and in order.

    Args:
        step: int[i], the step of each iteration of the repeated epoch: 0 .. s-1, rising.

    >>> import numpy as np
    >>> repeat_iterations(0, 1, np.array([0, 0, 1, 1])).tolist() in ([0, 1, 2, 3], [2, 3, 0, 1])
    True
    """
    import numpy as np

    num_steps = int(step[-1]) + 1 if len(step) else 0
    order = repeat_order(seed, epoch, num_steps)
    first = np.searchsorted(step, np.arange(num_steps + 1))
    sizes = np.diff(first)[order]
    return np.repeat(first[order] - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(step))
