"""What hbpack uses of numba, which has no types of its own.

A compiled function returns what the function that it is made of returns, and takes numpy's scalars for Python's.
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

_R = TypeVar("_R")

__version__: str

@overload
def njit(function: Callable[..., _R]) -> Callable[..., _R]: ...
@overload
def njit(**options: Any) -> Callable[[Callable[..., _R]], Callable[..., _R]]: ...
