"""Every error that hbpack raises on purpose.

::

    HbpackError                    base; `exit_code` 1
    ├── UsageError                 what was asked for cannot be done; exit code 2, nothing written
    │   ├── ConfigError            an option or a config file
    │   ├── InputError             an input that cannot be read or is of no known format
    │   ├── TokenizerError         an unknown, broken or unsuitable tokenizer or chat template
    │   └── OutputError            the output folder holds something else
    └── RunError                   the run failed; exit code 1
        ├── TooManyRejectedError   more records were rejected than `--max-rejected` allows
        ├── PlanError              a plan breaks an invariant
        ├── FormatError            a packed data set that is damaged, or of another format version
        └── RemoteError            remote storage that does not answer

A message names the thing (file, line, value), the rule, and the remedy, in one line.
"""


class HbpackError(Exception):
    """Base of all deliberate errors; the command line prints its message without a traceback."""

    exit_code = 1


class UsageError(HbpackError):
    """What was asked for cannot be done; nothing has been written."""

    exit_code = 2


class ConfigError(UsageError):
    """An option or a config file is wrong."""


class InputError(UsageError):
    """An input cannot be read, or is of no known format."""


class TokenizerError(UsageError):
    """A tokenizer or chat template is unknown, broken, or unsuitable for the data."""


class OutputError(UsageError):
    """The output folder holds something that hbpack did not write."""


class RunError(HbpackError):
    """The run failed after it had begun."""


class TooManyRejectedError(RunError):
    """More records were rejected than `--max-rejected` allows."""


class PlanError(RunError):
    """A plan breaks one of its invariants (see `plan.check`)."""


class FormatError(RunError):
    """A packed data set is damaged, or of a format version that this release cannot read."""


class RemoteError(RunError):
    """Remote storage does not answer, or refuses."""
