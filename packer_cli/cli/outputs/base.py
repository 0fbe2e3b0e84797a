"""What every record of `--json` is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import click

from packer_cli.format.records import FOR_SCHEMA, known_values


@dataclass(frozen=True, kw_only=True)
class Output:
    """A record that a command prints."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA


def print_json(record: Output) -> None:
    """Print a record on stdout, without the keys that have no value."""
    click.echo(json.dumps(known_values(record), indent=2))
