"""Every error that hbpack raises on purpose.

::

    HbpackError                    base; `exit_code` 1
    ├── UsageError                 the request cannot be met; exit code 2, nothing written
    │   ├── ConfigError            an option or a config file is wrong
    │   ├── InputError             an input cannot be read, or its format is unknown
    │   │   └── GoneError          nothing is there
    │   ├── TokenizerError         a tokenizer or chat template is unknown, broken or unsuitable
    │   └── OutputError            the output folder holds files that hbpack did not write
    └── RunError                   the run failed; exit code 1
        ├── BusyError              another run writes to the output folder; exit code 75
        ├── TooManyRejectedError   more was rejected than `--max-rejected` or `--strict` allows
        ├── PlanError              a plan breaks an invariant
        ├── FormatError            a packed data set is damaged
        │   └── VersionError       it has another format version
        └── RemoteError            remote storage refuses the request
            └── UnreachableError   it does not answer; exit code 75

A message names the thing (file, line, value), the rule, and, after a semicolon, the remedy, in one line.
"""

from collections.abc import Iterable

TRY_AGAIN = 75
"""Exit code for what the same command may get past later: EX_TEMPFAIL of sysexits.h."""


class HbpackError(Exception):
    """Base of all deliberate errors; the command line prints its message without a traceback."""

    exit_code = 1


class UsageError(HbpackError):
    """The request cannot be met; nothing has been written."""

    exit_code = 2


class ConfigError(UsageError):
    """An option or a config file is wrong."""


class InputError(UsageError):
    """An input cannot be read, or its format is unknown."""


class GoneError(InputError):
    """An input that is not there, or holds no data."""


class TokenizerError(UsageError):
    """A tokenizer or chat template is unknown, broken, or unsuitable for the data."""


class OutputError(UsageError):
    """The output folder holds something that hbpack did not write."""


class RunError(HbpackError):
    """The run failed after it had started."""


class BusyError(RunError):
    """Another run writes to the output folder."""

    exit_code = TRY_AGAIN


class TooManyRejectedError(RunError):
    """More was rejected, or skipped, than `--max-rejected` or `--strict` allows."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what


class PlanError(RunError):
    """A plan breaks one of its invariants (see `plan.core.check`): a bug in hbpack, or in an algorithm added to it."""


class FormatError(RunError):
    """A packed data set is damaged, or this release cannot read it."""


class VersionError(FormatError):
    """A packed data set, or its token store, has a format version that this release cannot read."""


class RemoteError(RunError):
    """Remote storage refuses the request, or does not answer."""


class UnreachableError(RemoteError):
    """Remote storage does not answer."""

    exit_code = TRY_AGAIN


def printable(text: str) -> str:
    r"""Write a text as one line, with all that a terminal obeys or cannot show as Python escapes it.

    >>> printable("café\n\x1b[2J")
    'café\\n\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest, behind a wrong word, the nearest known one, or nothing if none is near.

    >>> did_you_mean("pakc", ["pack", "plan"])
    " (did you mean 'pack'?)"
    """
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {near[0]!r}?)" if near else ""


MISSING = "it is missing"
"""Fault of a file that is not there."""


def fault_of(why: object) -> str:
    """Say what is wrong with a file, to stand after its name: it is missing, or damaged.

    Args:
        why: its fault in a few words, or the error of whoever read it.
    """
    if isinstance(why, FileNotFoundError) or why == MISSING:
        return "is missing"
    return f"is damaged ({' '.join(str(getattr(why, 'strerror', None) or why).split())})"
