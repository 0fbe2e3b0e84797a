"""Twin of `plan.core.streams`."""

from __future__ import annotations

MASK = 0xFFFFFFFFFFFFFFFF


class SplitMix64:
    """Twin of `plan.core.streams`."""

    def __init__(self, state: int) -> None:
        self.state = state

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        return ((self.next() >> 32) * bound) >> 32

    def shuffle(self, values: list[int]) -> None:
        for i in range(len(values) - 1, 0, -1):
            j = self.below(i + 1)
            values[i], values[j] = values[j], values[i]

    def shuffle_buckets(self, values: list[int], bits: int) -> None:
        buckets: list[list[int]] = [[] for _ in range(2**bits)]
        for value in values:
            buckets[self.next() >> (64 - bits)].append(value)
        for bucket in buckets:
            self.shuffle(bucket)
        values[:] = [value for bucket in buckets for value in bucket]


def shuffled(num: int, state: int) -> list[int]:
    values = list(range(num))
    SplitMix64(state).shuffle(values)
    return values
