"""The command line, one file per command: options -> config -> stage -> table.

A command's module is imported only when the command runs, so `hbpack --help` answers at once.

The streams of the process: only results are on stdout, and an error of stderr stops no work.
Call `own_streams` where the process is hbpack's own: the call changes descriptors, which all threads share.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import re
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TextIO

import click

from packer_cli.cli.command import sections_of
from packer_cli.cli.console import JsonOutput, show_progress
from packer_cli.cli.failure import describe_failure
from packer_cli.cli.log import FORMATS, LINES
from packer_cli.engine.progress import LOGGER, say_failures
from packer_cli.errors import BusyError, HbpackError, PlanError, RunError, UsageError, printable
from packer_cli.remote.retries import take_failures
from packer_cli.signals import INSIDE, stop_signals
from packer_cli.startup import exit_at_once, few_collections
from packer_cli.version import __version__

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class StdoutError(RunError):
    """Error of a stdout that is closed, full or broken."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {'it is closed' if error.errno == errno.EBADF else error.strerror}")
        self.is_unread = error.errno == errno.EPIPE
        """Whether the reader, such as `head`, has closed the pipe."""


class _Stream(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.fileno() == 2:  # Who closed stderr does not want messages.
                return memoryview(data).nbytes
            raise StdoutError(error) from None


def own_streams() -> None:
    """Set up stdout and stderr.

    - Results go to a copy of stdout, and the descriptor itself becomes stderr. Libraries in C print to it, and so may
      worker processes.
    - A closed stream gets /dev/null, so that no file that is opened later takes its number, here or in a worker.
      Writing to a closed stdout is still an error.
    - An error of stderr is ignored.
    """
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):  # Stdin and stdout cannot be used.
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)
    results = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.__stdout__ = _text(_Stream(results, "w"), sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(_Stream(2, "w", closefd=False), sys.stderr)  # type: ignore[misc]


def _text(raw: io.FileIO, usual: TextIO | None) -> io.TextIOWrapper:
    encoding = usual.encoding if usual else "utf-8"  # Of another one, the text may have characters that it lacks.
    is_by_line = raw.isatty() or raw.fileno() == 2
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=is_by_line)


_BUG = "this is a bug in hbpack, or in what another package brought; report it with the command that you ran"

_RESUMABLE = {"pack", "append", "tokenize", "plan", "write", "rebalance", "export", "restore", "prune"}
"""Commands that keep the work of an interrupted run."""


class LazyGroup(click.Group):
    """Group that imports `packer_cli.cli.<name>` when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names, in the order in which the commands are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its object `command`; None for a name that is no command's."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"packer_cli.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        width = max(map(len, COMMANDS))
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write how to get the help of a command."""
        formatter.write_paragraph()
        formatter.write_text("hbpack COMMAND --help explains a command, with examples.")


_HELP = """\
Pack, balance and schedule mixed-length training data, before training.

Reads corpora, tokenizes them, chooses which samples share a pack and which packs an iteration, and writes indexed
shards that any trainer reads without further work.

Begin:
    init: Look at your data and write a config file that hbpack pack runs unchanged.
    doctor: Check this installation and machine, and say how to fix what is missing.

Make a packed set:
    pack: Turn a corpus into packed, balanced, scheduled shards: tokenize, plan and write.
    tokenize: Tokenize a corpus into a token store.
    plan: Plan a token store: groups, packs, iterations and steps.
    write: Write the shards and rank manifests of a plan.
    append: Add data to a packed set, with the options it was made with.
    status: Say what is done, what is missing, and which tasks of a job array are left to run.

Change, check and export it:
    rebalance: Adapt a packed data set to a different number of GPUs, even in the middle of an epoch.
    versions: List the versions of a packed set, and what changed from one to the next.
    restore: Make an earlier version of a packed set the current one.
    prune: Remove older versions of a packed set, and the token parts that only they use.
    verify: Check a packed data set for damage.
    export: Write a packed data set in another trainer's format, or push it to the Hugging Face Hub.

Choose how to pack:
    profile: Measure iteration times and peak memory of your model on the GPUs of this machine.
    groups: Find the length groups with the shortest epoch for your lengths, model and GPUs.
    compare: Compare packing algorithms, balances or whole strategies side by side on your own lengths.
    simulate: Predict an epoch's time, where the GPUs' time goes, and the savings over naive packing.

Look at lengths, plans and sets:
    stats: Report balance, padding and communication of a packed set, a token store or lengths.
    report: Write a page with charts of a packed set, a plan or lengths, and what to try next.
    show: Show a rank's packs as text: samples, loss masks, and the records they come from.
    find: Find where records went: packs, shards, and the steps and ranks that train on them."""
"""No docstring, which `python -OO` would remove."""


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="hbpack")
def cli() -> None:
    """Run a command."""


cli.help, _SECTIONS = sections_of(_HELP)
COMMANDS = {name: text for commands in _SECTIONS.values() for name, text in commands.items()}
"""Commands, each with its line of the help, in the order of the help."""
cli.commands = COMMANDS  # type: ignore[assignment]  # Names that click suggests.


def main() -> None:
    """Run the command line, and print an error as one line.

    Exit codes: 2 for wrong usage, 1 for failure, 75 for one that may end by itself, 130 for Ctrl-C, 143 for SIGTERM.
    """
    # hbpack needs no torch here, so transformers should not advise to install it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # numpy starts a thread of OpenBLAS for each core, which spins; hbpack multiplies no large matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would look for plugins, which hbpack does not use, in the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    show_progress()
    take_failures()  # Those of whatever this process did before.
    LINES.form = next((form for form in FORMATS if form == _value_of("--log-format", sys.argv[1:])), None)
    output = JsonOutput("--json" in sys.argv[1:])
    try:
        with stop_signals(partial(_leave_at_once, output)) as stop:
            try:
                try:
                    cli.main(prog_name="hbpack", standalone_mode=False, obj=output)
                finally:
                    say_failures("other work")
                sys.stdout.flush()
            except BaseException as error:
                if stop.number is not None:  # Whatever became of the KeyboardInterrupt on its way.
                    _fail(_stopped(stop.number), output)
                _report(error, output)
    except OSError as error:  # No descriptors for a pipe.
        _report(error, output)


class _End(NamedTuple):
    """An error, and how it ends the process."""

    kind: str
    message: str
    code: int = 1
    path: str | None = None


def _report(error: BaseException, output: JsonOutput) -> NoReturn:
    """Print an error as one line and exit; raise it again if it is unexpected."""
    if isinstance(error, StdoutError) and error.is_unread:
        sys.exit(1)
    if isinstance(error, click.Abort) and isinstance(error.__cause__, EOFError):
        error = error.__cause__  # Click takes it for Ctrl-C, and it may be of any library.
        error.__suppress_context__ = True
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        sys.exit(error.exit_code)
    end = _describe(error)
    if end is None:
        if isinstance(error, Exception):
            _print_json(_End(type(error).__name__, f"{error}; {_BUG}"), output)
        raise error
    _fail(end, output)


def _describe(error: BaseException) -> _End | None:
    """Describe an error; None for one that is unexpected."""
    kind = type(error).__name__
    if isinstance(error, HbpackError):
        is_bug = isinstance(error, PlanError)
        return _End(kind, f"the plan breaks a rule: {error}; {_BUG}" if is_bug else str(error), error.exit_code)
    if isinstance(error, click.Abort):
        return _stopped(signal.SIGINT)
    if isinstance(error, click.ClickException):
        command = " ".join(("hbpack", _command())).strip()
        return _End(UsageError.__name__, f"{_one_line(error)}; see {command} --help", error.exit_code)
    if isinstance(error, OSError):
        text, path = _what_failed(error)
        what = f"{text} ({path})" if path else text
        return _End(OSError.__name__, f"{what}{_REMEDIES.get(error.errno or 0, '')}", path=path)
    if isinstance(error, MemoryError):
        found = cli.get_command(click.Context(cli), _command())
        has_workers = found is not None and any(each.name == "workers" for each in found.params)
        fewer = ", or give fewer --workers," if has_workers else ""
        return _End(MemoryError.__name__, f"out of memory; close other programs{fewer} and run the same command again")
    return None


def _what_failed(error: OSError) -> tuple[str, str | None]:
    """Return the system's words for an error, and the file."""
    text, path = error.strerror or str(error), error.filename
    if found := re.fullmatch(r"[^']*'(.+)'\. Detail: \[errno \d+\] (.+)", text):  # Of pyarrow.
        path, text = found.groups()
    return text, str(path) if path else None


def _stopped(number: int) -> _End:
    if number == INSIDE:
        what = "another hbpack run has taken over the output folder; run again when that has ended"
        return _End(BusyError.__name__, what, BusyError.exit_code)
    what = "interrupted" if number == signal.SIGINT else "terminated"
    again = "; run the same command again to go on" if _command() in _RESUMABLE else ""
    return _End(what.capitalize(), f"{what}{again}", 128 + number)


def _leave_at_once(output: JsonOutput, number: int) -> NoReturn:
    """End the process, and so its workers, after a signal that the main thread does not see, as in a solver."""
    end = _stopped(number)
    with contextlib.suppress(SystemExit):
        _fail(end, output)
    os._exit(end.code)


def _value_of(option: str, words: list[str]) -> str | None:
    """Find the value of an option on the command line; the last one counts."""
    for word, after in zip(reversed(words), [None, *reversed(words)], strict=False):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else after
    return None


def _use_utf8() -> None:
    """Start this process again in Python's UTF-8 mode where the locale has another encoding, as `LC_ALL=C` may.

    Libraries that are not of Python, and all that hbpack writes, take the names of files as UTF-8.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def run() -> None:
    """Run `main`, then exit at once. This is the entry point of the process."""
    _use_utf8()
    own_streams()
    few_collections()
    code = 1  # For an unexpected error, whose traceback Python prints.

    def finish() -> int:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except StdoutError:
            return code or 1
        return code

    exit_at_once(finish)
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


_REMEDIES = {
    errno.ENOSPC: "; make room and run the same command again to go on",
    errno.EDQUOT: "; make room and run the same command again to go on",
    errno.EFBIG: "; raise the limit of file sizes (ulimit -f) and run the same command again to go on",
    errno.EROFS: "; make it writable, or name another output folder",
    errno.EMFILE: "; raise the limit of open files (ulimit -n) and run the same command again to go on",
    errno.ENFILE: "; close other programs and run the same command again to go on",
}


def _command() -> str:
    """Find the command on the command line; return an empty string if there is none."""
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    return name if name in COMMANDS else ""


def _one_line(error: click.ClickException) -> str:
    """Write Click's message in hbpack's style: with a lower-case first letter and no full stop."""
    text = " ".join(error.format_message().split()).rstrip(".")
    text = re.sub(r"\.? \(?Did you mean (.*\?)\)?$", r" (did you mean \1)", text)
    return text[:1].lower() + text[1:]


def _fail(end: _End, output: JsonOutput) -> NoReturn:
    LOGGER.error("%s", end.message)
    _print_json(end, output)
    sys.exit(end.code)


def _print_json(end: _End, output: JsonOutput) -> None:
    """Print an error as JSON if it is wanted, unless the command has printed its result."""
    if output.is_wanted and not output.is_printed:
        with contextlib.suppress(StdoutError):
            output.print(describe_failure(end.kind, printable(end.message), end.path))
            sys.stdout.flush()
