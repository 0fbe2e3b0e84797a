"""Length groups, which pieces belong to each (GroupData; HBP, algorithm 5), and the limits of their rows.

Without numpy at run time, so that reading the command line does not load it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from packer_cli.format.layout import Layout
from packer_cli.sizes import format_tokens, parse_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNLIMITED = 2**31 - 1
"""Most samples of a pack where `--max-samples` sets no limit, and percent of a capacity that no row exceeds."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Packs that share capacity, sequence-parallel degree and checkpointing."""

    # pydantic reads this, the limits and the descriptions where users name groups.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    capacity: int = field(
        metadata={"ge": 1, "lt": 2**31, "json_schema_extra": {"type": ["integer", "string"]}}  # As 16384 or 16k.
    )
    """Most tokens a pack may hold (HBP's packing length). Attention costs its square."""
    sp_size: int = field(default=1, metadata={"ge": 1, "lt": 2**15})
    """Sequence-parallel degree: GPUs that share one pack. A higher degree fits longer packs and communicates more."""
    checkpoint_layers: int = field(default=0, metadata={"ge": 0, "lt": 2**15})
    """Layers with gradient checkpointing, a hint for the trainer."""
    align: int = field(default=1, metadata={"ge": 1, "lt": 2**31})
    """Each sample counts at its length rounded up to a multiple of this. A larger one pads more."""
    cp_size: int = field(default=1, metadata={"ge": 1, "lt": 2**15})
    """Context-parallel degree: GPUs that share one pack by ring or all-gather attention. Not together with SP."""
    tp_size: int = field(default=1, metadata={"ge": 1, "lt": 2**15})
    """Tensor-parallel degree."""
    pp_size: int = field(default=1, metadata={"ge": 1, "lt": 2**15})
    """Pipeline stages."""
    vpp_size: int = field(default=1, metadata={"ge": 1, "lt": 2**15})
    """Parts of each stage, which take turns (interleaved 1F1B); they leave the pipeline fewer bubbles."""

    @property
    def layout(self) -> Layout:
        """Layout of the model and its rows on the GPUs of a replica."""
        return Layout(sp=self.sp_size, cp=self.cp_size, tp=self.tp_size, pp=self.pp_size, vpp=self.vpp_size)

    @property
    def num_gpus(self) -> int:
        """GPUs of a replica, which run a pack together."""
        return self.sp_size * self.cp_size * self.tp_size * self.pp_size

    def __str__(self) -> str:
        """Write the group as `--groups` takes it.

        >>> str(Group(capacity=131072, sp_size=8))
        '128k:8'
        """
        text = f"{format_tokens(self.capacity)}:{self.sp_size}"
        return f"{text}:{self.checkpoint_layers}" if self.checkpoint_layers else text

    def name(self, number: int) -> str:
        """Name of the group with this number in a plan, and of the folder with its shards.

        >>> Group(capacity=131072, sp_size=8).name(1)
        'g1-131072-sp8'
        """
        return f"g{number}-{self.capacity}-{self.layout}"

    @property
    def full_row(self) -> int:
        """Tokens of a full row: the capacity, rounded up so that the ranks that share a row divide it.

        >>> Group(capacity=100, sp_size=8).full_row
        104
        """
        return -(-self.capacity // self.layout.row_multiple) * self.layout.row_multiple

    def num_dp_ranks(self, num_gpus: int) -> int:
        """Count the data-parallel ranks of the group on `num_gpus` GPUs."""
        return num_gpus // self.num_gpus


Overflow = Literal["split", "truncate", "drop", "error"]


class SizeRule(NamedTuple):
    """The limits on samples and items, and the fate of those over them."""

    capacity: int
    """Tokens of the longest group."""
    overflow: Overflow
    limits: tuple[int, ...] = ()
    """See `Plan.limits`."""

    @property
    def most(self) -> tuple[int, ...]:
        """The most of each need of a piece, see `Pieces.needs`."""
        return limits_of(self.capacity, self.limits)

    @property
    def divides(self) -> bool:
        """Whether flat samples are cut into several pieces, rather than cut off."""
        return self.overflow == "split"


def limits_of(capacity: int, others: Sequence[int]) -> tuple[int, ...]:
    """Return the most that a pack may have of each need: tokens, and the others by their percent of the capacity.

    >>> limits_of(16384, (100, 200))
    (16384, 16384, 32768)
    """
    return (capacity, *(capacity * percent // 100 for percent in others))


def require_aligned(group: Group) -> None:
    """Raise ValueError if a full row of the group could not be made of aligned samples, or counted in 32 bits."""
    if group.full_row >= 2**31:
        multiple = group.layout.row_multiple
        raise ValueError(
            f"a full row of group {group} has {group.full_row} tokens, since the ranks that share it divide it, and "
            f"must have below {2**31}; choose a capacity of at most {2**31 - multiple}"
        )
    rest = group.capacity % group.align
    if rest:
        lower = group.capacity - rest
        choices = " or ".join(str(each) for each in (lower, lower + group.align) if 0 < each < 2**31)
        raise ValueError(
            f"the capacity of group {group} must be a multiple of its align, {group.align} tokens; choose {choices}, "
            "or another align"
        )


def is_in_group(lengths: NDArray[np.int32], groups: Sequence[Group], g: int) -> NDArray[np.bool_]:
    """Whether each piece (bool[n]) belongs to group g: `previous capacity < length <= capacity`. O(n).

    >>> import numpy as np
    >>> groups = (Group(capacity=4), Group(capacity=16, sp_size=2))
    >>> is_in_group(np.array([1, 4, 5, 16], dtype=np.int32), groups, 1).tolist()
    [False, False, True, True]
    """
    inside = lengths <= groups[g].capacity
    if g > 0:
        inside &= lengths > groups[g - 1].capacity
    return inside


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


_MOST_TIMES = 10_000


def read_limits(text: str | None) -> tuple[int, ...]:
    """Read the limits of rows, see `Plan.limits`, by `--max-path-tokens`; rows of flat samples have none.

    >>> [read_limits(text) for text in ("2x", "1.5x", None)]
    [(100, 200), (100, 150), ()]

    Raises:
        ValueError: the text is another.
    """
    if text is None:
        return ()
    try:
        percent = UNLIMITED if text == "none" else round(100 * parse_number(text.removesuffix("x")))
    except (ValueError, OverflowError):
        percent = 0
    if text != "none" and not (text.endswith("x") and 100 <= percent <= 100 * _MOST_TIMES):
        raise ValueError(
            f"must be a multiple of the capacity of at least 1x, such as 2x, or none, got {text!r}; a pack has at "
            "least as many path tokens as tokens"
        )
    return (100, percent)


def read_path_tokens(value: object) -> str | None:
    """Return the value as it is kept. Raises ValueError where it is not one."""
    text = None if value is None else str(value).strip().lower()
    read_limits(text)
    return text
