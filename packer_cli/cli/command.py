"""Parts of commands: their help, and the types of their options and arguments.

A command shows its options in panels, and examples, and names the commands that have an option that this command
lacks. A type checks a value, and gives the words with which a shell completes a value.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from packer_cli.cli.console import JsonOutput
from packer_cli.cli.log import FORMATS, LINES
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.panels import Names, Panel

F = TypeVar("F", bound=Callable[..., Any])
_FAR = 2**20
_FEW = 18
"""Number of options up to which the help shows all, common or not."""
_ALL = "packer_cli.help_all"
EXAMPLES = "Examples (run them in examples/sample)"


class Option(click.Option):
    """An option in a panel of the help.

    Args:
        help: its first paragraph is for the short help; the full one and docs/cli.md have the rest, too. Without it,
            the docstring of the callback is it or, without one, that of the command has it, see `as_command`.
        is_common: whether most people set it, so that a short help has it.
    """

    def __init__(
        self, *args: Any, help: str = "", panel: Panel = Panel.MAIN, is_common: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.panel, self.is_common = panel, is_common
        self.explain(help or inspect.cleandoc(getattr(self.callback, "__doc__", None) or ""))

    def explain(self, help: str) -> None:
        """Set the help."""
        short, _, self.story = help.partition("\n\n")
        self.help = " ".join(short.split())

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return the option's notes in brackets in the help: its default and its range, in words."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        if isinstance(self.type, (click.IntRange, click.FloatRange)):
            extra["range"] = _in_words(self.type)
        return extra


class Choice(click.Choice[str]):
    """A choice whose error suggests the nearest value."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Write the error for a value that is not among the choices."""
        message = super().get_invalid_choice_message(value, ctx).rstrip(".")
        return f"{message}{did_you_mean(str(value), self.choices)}"


class Command(click.Command):
    """A command with panels and examples, see `as_command`."""

    def __init__(self, *args: Any, examples: str = "", chain: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self._chain = chain
        self.options = [each for each in self.params if isinstance(each, Option)]
        self._has_more = len(self.options) > _FEW and not all(each.is_common for each in self.options)
        if self._has_more:
            text = f"Show all {len(self.options)} options."
            show: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
            self.params.append(click.Option(["--help-all"], help=text, **show))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, which waits for locked folders for the time of `--wait`.

        Options of `--groups auto` in a config file that names groups are for `hbpack groups`.
        """
        if ctx.params.get("groups") not in (None, "auto", ["auto"]):
            from packer_cli.config.fields import OF_AUTO

            for name in OF_AUTO & ctx.params.keys():
                if ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
                    ctx.params[name] = None
        wait = ctx.params.pop("wait", None)
        if not wait:
            return super().invoke(ctx)
        from packer_cli.folder_lock import waiting

        with waiting(wait):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options panel by panel, or the common ones of many as one list."""
        is_short = self._has_more and _ALL not in ctx.meta
        panels: dict[Panel, list[tuple[str, str]]] = {panel: [] for panel in Panel}
        order = list(Panel)
        of_help = [each for each in self.get_params(ctx) if not isinstance(each, (click.Argument, Option))]
        for each in [*sorted(self.options, key=lambda option: order.index(option.panel)), *of_help]:
            record = each.get_help_record(ctx)
            if record is None or (is_short and not getattr(each, "is_common", True)):
                continue
            if isinstance(each, Option) and each.story and not is_short:
                record = record[0], record[1].replace(str(each.help), f"{each.help} {_in_a_paragraph(each.story)}", 1)
            panels[Panel.MAIN if is_short else getattr(each, "panel", Panel.MAIN)].append(record)
        for panel, records in panels.items():
            if records:
                with formatter.section(panel.value):
                    formatter.write_dl(records, col_max=26 if is_short else 30)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are, so that they can be copied."""
        if self.examples:
            with formatter.section(EXAMPLES):
                formatter.write(textwrap.indent(self.examples, " " * formatter.current_indent) + "\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. The error for an unknown option names the commands that have it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            owners = [name for name, other in all_commands(ctx).items() if error.option_name in _options_of(other)]
            if not owners:
                raise
            has = "has" if len(owners) == 1 else "have"
            message = f"no such option {error.option_name!r}; {_listed(owners)} {has} it"
            if set(owners) & set(self._chain):
                names = _listed(self._chain, last="and then")
                message += f", so run {names} in place of hbpack {self.name}"
            raise click.UsageError(message, ctx) from None


def sections_of(doc: str) -> tuple[str, dict[str, dict[str, str]]]:
    """Divide a docstring into its text and the sections at its end: by title, the text of each name."""
    text, *parts = re.split(r"^(\w[^\n]*):\n(?=    \w+: )", inspect.cleandoc(doc), flags=re.MULTILINE)
    sections = {}
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        _, *entries = re.split(r"^    (\w+): ", body, flags=re.MULTILINE)
        sections[title] = dict(zip(entries[::2], map(inspect.cleandoc, entries[1::2]), strict=True))
    return text.strip(), sections


def as_command(chain: Sequence[str] = ()) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function the command that its module is named after.

    Its docstring is the help; sections at its end explain the options that have no help of their own (`Args:`), and
    give examples (`Examples::`).

    Args:
        chain: the commands that this one runs in turn; they may have options that it lacks.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        name = function.__module__.rpartition(".")[2]
        text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples::\n\n")
        text, sections = sections_of(text)
        explained = sections.get("Args", {})
        command: Command = click.command(
            name, cls=Command, help=text, examples=textwrap.dedent(examples), chain=chain
        )(function)
        for each in command.options:
            if each.name in explained:
                each.explain(explained[each.name])
        return command

    return decorate


def _in_a_paragraph(story: str) -> str:
    """Join the rest of a help to one paragraph, with lists as text."""
    parts = []
    for part in story.split("\n\n"):
        items = [" ".join(item.split()) for item in part.removeprefix("- ").split("\n- ")]
        parts.append("; ".join(items) + ("." if part.startswith("- ") else ""))
    return " ".join(parts)


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _in_words(span: click.IntRange | click.FloatRange) -> str:
    """Write a range in words, without an end that only guards against slips of the keyboard."""
    if span.max is None or span.max >= _FAR:
        return f"{'above' if span.min_open else 'at least'} {span.min}"
    return f"above {span.min}, at most {span.max}" if span.min_open else f"{span.min} to {span.max}"


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Make a `click.option` with a `panel`."""
    return click.option(*names, cls=Option, **settings)


def json_option(schema: str, panel: Panel = Panel.MAIN) -> Callable[[F], F]:
    """Make `--json`, which `print_json` reads, and `--log-format`; `schema` is a name below `schemas/`."""
    text = f"Print JSON instead of tables; schemas/{schema}.schema.json describes it."
    about: dict[str, Any] = {"panel": panel, "is_common": False, "expose_value": False}
    results = option("--json", "as_json", is_flag=True, help=text, callback=_note, **about)
    lines = option("--log-format", type=Choice(FORMATS), is_eager=True, callback=_set_log_format, **about)
    return lambda function: results(lines(function))


def _note(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(JsonOutput).is_wanted = value


def _set_log_format(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Give each line on stderr its time (UTC) and level, as text or as a JSON object.

    Lines of progress come in place of bars, every 30 seconds, as they do without a terminal.
    """
    if value is not None:  # It may come from a config file. `main` has set what is typed, for early errors.
        LINES.form = value


def all_commands(ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands of the group whose command runs, by name; an empty dict outside a group."""
    if ctx.parent is None or not isinstance(ctx.parent.command, click.Group):
        return {}
    group, parent = ctx.parent.command, ctx.parent
    found = {name: group.get_command(parent, name) for name in group.list_commands(parent)}
    return {name: command for name, command in found.items() if command is not None}


def _options_of(found: click.Command) -> Collection[str]:
    return {word for parameter in found.params for word in (*parameter.opts, *parameter.secondary_opts)}


def _listed(names: Sequence[str], last: str = "and") -> str:
    """Write the names of commands as a list, such as `hbpack tokenize, write and export`."""
    *others, final = names
    return f"hbpack {', '.join(others)} {last} {final}" if others else f"hbpack {final}"


class Text(click.ParamType):  # type: ignore[type-arg]  # Not so in older releases.
    """Text that the command validates.

    Args:
        names: the words with which a shell completes the text, after a comma again; None for files.
    """

    name = "text"
    _completes = "file"

    def __init__(self, names: Names | None = None) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Find the names that begin as the word does, or let the shell complete files."""
        if self._names is None:
            return [CompletionItem(incomplete, type=self._completes)]
        before, comma, begin = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{name}") for name in self._names() if name.startswith(begin)]


class LocalPath(Text):
    """A path on this machine. A URL is refused: as a path, `s3://bucket/out` would be a local folder named `s3:`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path unchanged, or fail."""
        if "://" in str(value):
            raise ConfigError(f"{value}: this must be a local file or folder; name a local path")
        return value


class Folder(Text):
    """The output of an earlier command, or its URL."""

    _completes = "dir"


class OutputFolder(Folder):
    """A folder or URL to write to. An empty name, as from an unset variable, is refused: it would mean the current
    folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name unchanged, or fail."""
        if not str(value):
            self.fail("it is empty; name a folder, or '.' for the current one.", param, ctx)
        return value


def words_of(metavar: str) -> Names:
    """Return a function that finds the words that a metavar offers, without placeholders for values.

    >>> words_of("sequence|document|auto[:rho=R]")()
    ['sequence', 'document', 'auto']
    """
    return lambda: re.findall(r"(?:^|\|)([a-z]+)(?=$|[|\[])", metavar)


def compared() -> Iterable[str]:
    """List the values of `--strategies`."""
    from packer_cli.compare.rows import ALL
    from packer_cli.plan.strategies.registry import STRATEGIES

    return (ALL, *STRATEGIES.names())


def columns() -> Iterable[str]:
    """List the columns of `hbpack compare`."""
    from packer_cli.tables.compare import COLUMNS

    return (column.name for column in COLUMNS)
