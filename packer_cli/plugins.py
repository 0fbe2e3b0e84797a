"""Plugins that other packages bring: packings, strategies, exports, loader formats and record shapes.

A package names them by entry point in the group `hbpack.KIND`, and nothing of it is imported before its name is asked
for, so that a broken one harms no other. In Python, an object may be given instead.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from packer_cli.errors import ConfigError, HbpackError, RunError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_NAME = re.compile("[a-z][a-z0-9-]*")
Block = AbstractContextManager[None]
OBJECT = "an object of this process"
"""Origin of a plugin that no package brings."""


class Registry(Mapping[str, T], Generic[T]):
    """All of one kind by name: hbpack's own, which iterating gives, and others' when they are named."""

    def __init__(self, kind: str, what: str, own: Mapping[str, T | str], take: Callable[[str, Any], T]) -> None:
        """Read nothing yet.

        Args:
            kind: other packages name theirs in the entry points `hbpack.KIND`.
            what: one of them in words, for messages.
            own: hbpack's own by name; or as `MODULE:OBJECT`, which is imported when it is asked for.
            take: what to make of the object that another package has by a name; raises TypeError or ValueError with
                the reason if it is none.
        """
        self._kind, self._what, self._own, self._take = kind, what, own, take
        self._others: dict[str, tuple[T, str]] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._own:
            return self._other(name)[0]
        own = self._own[name]
        return self._take(name, pkgutil.resolve_name(own)) if isinstance(own, str) else own

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def names(self) -> list[str]:
        """Return all names, those of other packages included; what they stand for is not loaded."""
        return [*self._own, *sorted({*(each.name for each in self._entry_points()), *self._others} - self._own.keys())]

    def ignored(self) -> list[str]:
        """List names that other packages bring and hbpack has itself."""
        return sorted({each.name for each in self._entry_points()} & self._own.keys())

    def package(self, name: str) -> str | None:
        """Return who brings it: a package and its version, or `OBJECT`; None for hbpack itself."""
        return None if name in self._own else self._other(name)[1]

    def add(self, thing: Any) -> str:
        """Let the name of an object stand for it in this process, in place of any that was added before.

        An object that an installed package brings is that package's. Returns the name.

        Raises:
            ConfigError: it is no such thing, or its name is taken by hbpack's own.
        """
        name = getattr(thing, "name", None) or getattr(thing, "__name__", "").replace("_", "-")
        try:
            taken = self._take(name, thing)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self._what} {name or type(thing).__name__!r} cannot be used: {error}") from None
        if name in self._own:
            raise ConfigError(f"{self._what} {name!r} is hbpack's own; give yours another name")
        if not _NAME.fullmatch(name):
            rule = "use a-z, digits and hyphens, such as my-own"
            raise ConfigError(f"{name!r} is not a valid name of a {self._what}; {rule}")
        place = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        brought = [each for each in self._entry_points() if (each.name, each.value) == (name, place)]
        if brought:
            self._others.pop(name, None)
        else:
            self._others[name] = taken, OBJECT
        return name

    def unknown(self, name: str) -> str:
        """Say of a name that it stands for nothing."""
        return unknown(self._what, name, self.names())

    def _entry_points(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points  # Reads the folders of all packages.

        return [each for each in entry_points(group=f"hbpack.{self._kind}") if _NAME.fullmatch(each.name)]

    def _other(self, name: str) -> tuple[T, str]:
        if name not in self._others:
            found = [each for each in self._entry_points() if each.name == name]
            if not found:
                raise KeyError(name)
            packages = sorted({f"{each.dist.name} {each.dist.version}" for each in found if each.dist is not None})
            if len(found) > 1:
                raise ConfigError(f"{self._what} {name!r} is of {' and of '.join(packages)}; uninstall one of them")
            try:
                with redirect_stdout(sys.stderr):
                    self._others[name] = self._take(name, found[0].load()), packages[0]
            except (Exception, SystemExit) as error:
                reason = " ".join(str(error).split())
                raise ConfigError(
                    f"{self._what} {name!r} of {packages[0]} cannot be loaded: {type(error).__name__}: {reason}; fix "
                    "or uninstall that package, or choose another"
                ) from None
        return self._others[name]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say of a name that it is none of those known."""
    return f"unknown {what} {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"


@contextmanager
def blaming(what: str, name: str, module: str) -> Iterator[None]:
    """Turn what code of another package raises into a RunError that names it; hbpack's own code raises as it does.

    What the other package prints goes to stderr: stdout is for results.

    Args:
        module: the one that the code is of.
    """
    if module.startswith("packer_cli."):
        yield
        return
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        if isinstance(error, HbpackError):
            raise
        raise RunError(f"{what} {name!r} failed: {type(error).__name__}: {' '.join(str(error).split())}") from error
