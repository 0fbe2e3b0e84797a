"""`compare`: many plans of the same samples, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from packer_cli.commands.arguments import Inputs, corpus_of, is_paths, listed, path_names, samples_of, takes
from packer_cli.config import PlanConfig, TokenizeConfig, validate
from packer_cli.config.models import BoundConfig, WorkersConfig

if TYPE_CHECKING:
    from packer_cli.commands.options import BoundOptions, PlanOptions, TokenizeOptions, WorkersOptions
    from packer_cli.commands.results import Comparison
    from packer_cli.plan.packing import PackingAlgorithm
    from packer_cli.plan.strategies.protocol import Strategy

    class _Options(PlanOptions, TokenizeOptions, BoundOptions, WorkersOptions, total=False): ...


@takes(PlanConfig, TokenizeConfig, BoundConfig, WorkersConfig)
def compare(
    lengths: Inputs,
    *,
    algorithms: str | Sequence[str | PackingAlgorithm | Callable[..., Any]] | None = None,
    strategies: str | Sequence[str | Strategy] | None = None,
    sort: str | None = None,
    **options: Unpack[_Options],
) -> Comparison:
    """Compare packing algorithms, balances or whole strategies side by side, as `hbpack compare` does.

    Each row is planned in a process of its own, checked and measured; with `model` and `gpu`, or `profile`, its epoch
    is predicted as well. Nothing is kept.

    Args:
        lengths: as `plan` takes them; or, with `tokenizer`, a corpus as `pack` takes it.
        algorithms: only these rows: `[PACKING][/BALANCE][@longest],...`, such as `"isf,bfd,/window:8"`; or a list, in
            which objects may stand for packings.
        strategies: only a row for each of these values of `strategy`, or `"all"`; or a list, in which objects may
            stand for strategies.
        sort: a column of the table, such as `"abr"`; `"-abr"` sorts in descending order.
        options: those of a plan, of a corpus, `bound` and `workers`.

    Returns:
        The rows, each with its figures or the reason why it failed.

    Raises:
        HbpackError: an option or a length is wrong, or there is nothing to plan.
    """
    config = validate(PlanConfig, options)
    corpus = corpus_of(lengths, options)
    by_program = validate(BoundConfig, options).bound == "lp"
    workers = validate(WorkersConfig, options).workers
    from packer_cli.commands.compare import run_compare
    from packer_cli.commands.results import Comparison

    source = path_names(lengths) if is_paths(lengths) else samples_of(lengths)
    found = run_compare(
        source,
        corpus,
        config,
        listed("packing", algorithms),
        workers,
        strategies=listed("strategy", strategies),
        sort=sort,
        by_program=by_program,
    )
    return Comparison(**vars(found))
