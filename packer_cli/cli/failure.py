"""The error of a command: as a line on stderr and, with `--json`, as JSON on stdout."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error."""

    kind: str
    """Class of `packer_cli.errors`, such as `BusyError`; `OSError`, `MemoryError`, `Interrupted` or `Terminated`; or
    the class of an error that is a bug."""
    message: str
    """The line of stderr."""
    path: str | None
    """The first path or URL that the message names."""
    remedy: str | None
    """The end of the message, behind its last semicolon, which says what to do."""


@dataclass(frozen=True, kw_only=True)
class ErrorOutput:
    """Output of a command that fails before it has printed a result."""

    error: Failure


_NAMED = re.compile(r"""(?:^|(?<=[\s(]))(?:'([^']+)'|"([^"]+)"|((?:\w+://)?[^\s:'"]+)(?=:[\d\s]))""")
"""A name in a message: in quotes, or before a colon."""


def describe_failure(kind: str, message: str, path: str | None = None) -> ErrorOutput:
    """Divide the line of an error into its parts.

    Args:
        path: the error's, where it is known.

    >>> describe_failure("InputError", "a/b.jsonl:3: not an object; correct it, or leave it out").error.path
    'a/b.jsonl'
    """
    text, semicolon, remedy = message.rpartition("; ")
    found = path or _first_path(text or message)
    return ErrorOutput(error=Failure(kind=kind, message=message, path=found, remedy=remedy if semicolon else None))


def _first_path(text: str) -> str | None:
    """Find the first path, which need not exist; a name without a slash in the middle of a message may be anything."""
    for match in _NAMED.finditer(text):
        name: str = next(filter(None, match.groups()))
        if "/" in name or os.path.lexists(name) or (match.start() == 0 and text[0] in "'\""):
            return name
    return None
