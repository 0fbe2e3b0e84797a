"""The signature of a packing algorithm, and the text form of its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces
from packer_cli.plugins import Registry, unknown

_WITHIN = "within"


def within(default: Any, least: int, most: int, *, is_open: bool = False) -> Any:
    """Make the field of an option that is a number in a range.

    Args:
        is_open: whether it is more than the least.
    """
    return dataclasses.field(default=default, metadata={_WITHIN: (least, most, is_open)})


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """Options of one algorithm. An algorithm with options has a subclass in its own file."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if _WITHIN in each.metadata:
                least, most, is_open = each.metadata[_WITHIN]
                value = getattr(self, each.name)
                if not least <= value <= most or (is_open and value == least):
                    self.require(
                        each.name, False, f"be {'over' if is_open else 'at least'} {least} and at most {most}"
                    )

    def require(self, name: str, holds: bool, rule: str, of: str | None = None) -> None:
        """Raise ValueError with the rule of an option, perhaps of a packing of that name, unless it holds."""
        if not holds:
            where = f" of packing {of!r}" if of else ""
            raise ValueError(f"option {name!r}{where} must {rule}, got {getattr(self, name)!r}")


PackFunction = Callable[[Int32Array, int, int, Any], tuple[Int64Array, Int32Array]]
"""(lengths, capacity, seed, options) -> (offsets, order)"""

PackNeedsFunction = Callable[[Int64Array, Int64Array, int, Any], tuple[Int64Array, Int32Array]]
"""(needs int64[r, n], limits int64[r], seed, options) -> (offsets, order)"""

CutFunction = Callable[[Pieces, int, int, int], Pieces]
"""(pieces, capacity, seed, align) -> the same tokens in other pieces, each at a multiple of `align` in its pack"""


@dataclass(frozen=True, kw_only=True)
class PackingAlgorithm:
    """One entry of the registry."""

    name: str
    summary: str
    """One line for help texts."""
    pack: Callable[..., Any]
    """A `PackFunction`, but for packers that only one strategy has."""
    options: type[PackingOptions] = PackingOptions
    pack_needs: PackNeedsFunction | None = None
    """Packs pieces whose packs have several limits; without it, `pack` does, by the greatest share of a limit."""
    cut: CutFunction | None = None
    """Cuts samples before `pack`; a plan that uses it has exactly one group."""
    needs_split: bool = False
    """Whether samples over the greatest capacity must be split, not truncated or left out."""
    needs_power_of_two: bool = False
    """Whether the capacity must be a power of two."""
    is_padded: bool = False
    """Whether a pack is a batch whose samples are padded to its longest. A plan that uses it has exactly one group,
    exchanges no samples, and is never written."""
    bytes_a_sample: int = 20
    """Memory of a plan that uses it at its peak, with its figures and the lengths; measured on samples of 550
    tokens."""

    @property
    def needs_one_group(self) -> bool:
        """Whether a plan that uses it has exactly one group."""
        return self.cut is not None or self.is_padded


@dataclass(frozen=True, kw_only=True)
class ChunkOptions(PackingOptions):
    """A smaller chunk pads more."""

    chunk: int = within(0, 0, 2**31 - 1)
    """Samples that are packed together, one chunk after the other; 0 for all."""

    def pack(self, order: Int32Array, lengths: Int32Array, pack: ChunkFunction) -> tuple[Int64Array, Int32Array]:
        """Pack the samples chunk by chunk; `(offsets, order)` as of a `PackFunction`.

        Args:
            order: int32[n], the samples in the order of the chunks.
            pack: lengths to `(offsets, order)`, of one chunk.
        """
        if not 0 < self.chunk < len(order):
            offsets, packed = pack(lengths[order])
            return offsets, order[packed]
        ends, members = [np.zeros(1, dtype=np.int64)], []
        for first in range(0, len(order), self.chunk):
            own = order[first : first + self.chunk]
            offsets, packed = pack(lengths[own])
            ends.append(offsets[1:] + first)
            members.append(own[packed])
        return np.concatenate(ends), np.concatenate(members)


ChunkFunction = Callable[[Int32Array], tuple[Int64Array, Int32Array]]


P = TypeVar("P", bound=PackingAlgorithm)


def parse_packing(text: str, registry: Mapping[str, P]) -> tuple[P, PackingOptions]:
    """Read `name` or `name:option=value,...`.

    Raises:
        ValueError: an unknown name or option, an option given twice, or a value of the wrong type or range; the
            message lists what is known.
    """
    name, _, rest = text.partition(":")
    if name not in registry:
        known = registry.names() if isinstance(registry, Registry) else list(registry)
        raise ValueError(unknown("packing algorithm", name, known))
    algorithm = registry[name]
    fields = {field.name: field for field in dataclasses.fields(algorithm.options)}
    values: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if key not in fields or not equals:
            ways = ", ".join(f"{field.name}={field.default}" for field in fields.values()) or "none"
            raise ValueError(f"packing {name!r} has no option {item!r}; known, with defaults: {ways}")
        if key in values:
            raise ValueError(f"option {key!r} of packing {name!r} is given twice; keep one of them")
        kind: Callable[[str], Any] = type(fields[key].default)
        try:
            values[key] = kind(value)
        except ValueError:
            raise ValueError(
                f"option {key!r} of packing {name!r} must be {type(fields[key].default).__name__}, got {value!r}"
            ) from None
    return algorithm, algorithm.options(**values)
