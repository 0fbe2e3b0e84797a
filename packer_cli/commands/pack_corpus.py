"""The chain tokenize -> plan -> write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from packer_cli.commands.output_folder import APPEND_MARKER, refuse_other
from packer_cli.commands.tokenize import CorpusStore
from packer_cli.commands.write import PackedOutput, refuse_index
from packer_cli.config import StorePlanConfig, TokenizeConfig, WriteConfig
from packer_cli.engine.local import Engine
from packer_cli.engine.output import make_whole
from packer_cli.engine.progress import say
from packer_cli.format.constants import PLAN_NAME

if TYPE_CHECKING:
    from packer_cli.plan.strategies.protocol import PlanRequest
    from packer_cli.tokens.index import PartInfo
    from packer_cli.tokens.stage import Inputs


def pack_corpus(
    tokenize: TokenizeConfig,
    plan: StorePlanConfig,
    write: WriteConfig,
    folder: Path,
    engine: Engine,
    inputs: Inputs | None = None,
    command: str = "pack",
) -> None:
    """Turn a corpus into shards, without a lock.

    Args:
        inputs: see `packer_cli.tokens.stage.tokenize`.
        command: the `hbpack` command that makes the version.
    """
    # Loads numba, 0.3 s: the folder is checked by now.
    from packer_cli.commands.plan import check_options, make_plan
    from packer_cli.config.resolve import resolve

    checked = check_options(plan, tokenize.unit)
    refuse_index(write, tokenize.unit)
    if plan.validation is not None:
        refuse_other(folder)

    def require(part: PartInfo) -> None:
        """Refuse trees before they replace the store of a set. Where there is no set, tokens stay for another plan."""
        if has_plan and part.columns.of_items:
            resolve(plan, "item")
            refuse_index(write, "item")

    has_plan = (folder / PLAN_NAME).exists()
    is_parallel = engine.workers > 1 and not has_plan
    with _kernels(checked.request) if is_parallel else nullcontext():
        index = make_whole(CorpusStore(tokenize, folder, inputs, require), engine)
    engine.release()
    refuse_index(write, index.unit)
    make_plan(plan, checked, folder, folder)
    given = WriteConfig(**dict(write))  # With its defaults, as if given.
    make_whole(PackedOutput(given, folder, command=command, is_pack=True), engine)
    (folder / APPEND_MARKER).unlink(missing_ok=True)  # Whatever an append had begun is done, or given up.


_QUIET_SECONDS = 0.5
"""Wait for kernels of which nothing is said."""


@contextmanager
def _kernels(request: PlanRequest) -> Iterator[None]:
    """Load the plan's kernels on a thread while the block runs; on the first run, this compiles them.

    Nobody waits for the thread if the block fails. Its own errors are ignored, as the plan will raise them.
    """
    from packer_cli.plan.warming import warm_up

    def load() -> None:
        with suppress(Exception):
            warm_up(request)

    loading = Thread(target=load, daemon=True)
    loading.start()
    yield
    loading.join(_QUIET_SECONDS)
    if loading.is_alive():
        say("compiling the kernels of the plan, which a later run finds compiled")
    loading.join()
