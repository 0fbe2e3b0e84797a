"""The chain tokenize -> plan -> write."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer_cli.commands.output_folder import APPEND_MARKER, refuse_other
from packer_cli.commands.tokenize import CorpusStore
from packer_cli.commands.write import PackedOutput, refuse_index
from packer_cli.config import StorePlanConfig, TokenizeConfig, WriteConfig
from packer_cli.engine.local import Engine
from packer_cli.engine.output import make_whole
from packer_cli.engine.processes import start_worker
from packer_cli.files import fingerprint
from packer_cli.format.constants import PLAN_NAME
from packer_cli.startup import known_as_compiled, note_compiled, owns_process, skip_extensions

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
    from packer_cli.commands.plan_store import check_options, make_plan
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


@contextmanager
def _kernels(request: PlanRequest) -> Iterator[None]:
    """Load the plan's kernels on a thread while the block runs; on the first run, compile them in other processes."""
    from packer_cli.plan.warming import kernel_shares, warm_up

    skip_extensions()
    name = _kernels_name(request)
    if known_as_compiled(name):
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(warm_up, request)
            yield
        loading.result()
        return
    if not owns_process():  # Forked beside a user's threads, as a notebook has them, a process may hang.
        yield
        return
    with in_background(kernel_shares(request)):
        yield
    note_compiled(name)


def _kernels_name(request: PlanRequest) -> str:
    """Name the set of kernels that `kernel_shares` compiles; equal sets have equal names."""
    import llvmlite.binding  # type: ignore[import-untyped]
    import numba

    planner = request.strategy.plan.__qualname__
    has_cp = any(group.cp_size > 1 for group in request.groups)
    needed = (
        request.algorithm.name,
        request.fill,
        request.balance.refine,
        planner,
        request.mask,
        has_cp,
    )
    return "compiled-" + fingerprint(numba.__version__, llvmlite.binding.get_host_cpu_name(), needed)


@contextmanager
def in_background(functions: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Call each function in its own process while the block runs.

    The block waits for the processes at its end, and kills them if it fails. Their errors are ignored, so everything
    must work without them. On Linux they are forked from this process, and so import nothing again.
    """
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    processes = [context.Process(target=_run, args=(function,), daemon=True) for function in functions]
    started = []
    try:
        with suppress(OSError):
            for process in processes:
                process.start()
                started.append(process)
        yield
        for process in started:
            process.join()
    finally:
        for process in started:
            if process.is_alive():
                process.kill()
            process.join()


def _run(function: Callable[[], None]) -> None:
    start_worker()
    with suppress(Exception):
        function()
