"""Preloaded into workers by `test_crashes`: Arrow files of certain names crash whoever opens or reads them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packer_cli.tokens.preload  # noqa: F401
from packer_cli.corpus.readers import tables
from packer_cli.corpus.readers.registry import READERS


def crashing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(what: Any, *arguments: Any) -> Any:
        if Path(getattr(what, "path", "") or what.file.path).name == name:
            os.kill(os.getpid(), signal.SIGSEGV)
        return function(what, *arguments)

    return call


READERS["arrow"] = tables.ARROW._replace(
    cut=crashing("opens.arrow", tables.cut_arrow), read=crashing("reads.arrow", tables.read_arrow)
)
