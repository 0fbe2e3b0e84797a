"""Which of several predicted strategies to take, and why, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping

from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.simulate.figures import OverallFigures
from packer_cli.sizes import duration

ALIKE = 0.01
"""Predicted epochs within this share of each other count as equally long."""

_PARTS = {
    "waiting": "wait for slower ones",
    "padding": "compute padding",
    "communication": "communicate",
    "recompute": "repeat forward passes",
    "bubbles": "idle in pipeline bubbles",
    "constant": "pay the fixed price of a micro-batch",
}
"""What GPUs do in each part of their time that strategies differ in."""


def preferred(seconds: Mapping[str, float], strategies: Mapping[str, str]) -> str:
    """The name to take of predicted epochs: the shortest; of those as fast, one that asks nothing of a trainer.

    Args:
        seconds: name to predicted epoch, at least one.
        strategies: name to strategy.
    """
    names = sorted(seconds, key=lambda name: seconds[name])
    alike = (name for name in names if seconds[name] <= seconds[names[0]] * (1 + ALIKE))
    return next((name for name in alike if not STRATEGIES[strategies[name]].demands), names[0])


def advice(epochs: Mapping[str, OverallFigures]) -> str:
    """The strategy with the shortest predicted epoch, against the slowest; others that are as fast.

    A strategy that asks more of a trainer is not recommended for a gain below `ALIKE`.

    Args:
        epochs: strategy to predicted epoch, at least one.
    """
    seconds = {name: epoch.seconds for name, epoch in epochs.items()}
    names = sorted(seconds, key=lambda name: seconds[name])
    chosen = preferred(seconds, {name: name for name in names})
    alike = [name for name in names if seconds[name] <= seconds[names[0]] * (1 + ALIKE)]
    text = f"Take {chosen}: an epoch of {duration(epochs[chosen].seconds)}"
    if len(names) > 1 and (slowest := names[-1]) != chosen:
        text += _against(chosen, slowest, epochs)
    others = [name for name in alike if name != chosen]
    if others:
        text += f". Within {ALIKE:.0%} of it: {', '.join(others)}"
    needs = STRATEGIES[chosen].demands
    plain = next((name for name in names if not STRATEGIES[name].demands), None)
    if needs:
        text += f". Your trainer must {needs}"
        text += f"; without that, take {plain} ({duration(epochs[plain].seconds)})" if plain else ""
    return text + "."


def _against(chosen: str, slowest: str, epochs: Mapping[str, OverallFigures]) -> str:
    best, worst = epochs[chosen], epochs[slowest]
    text = f", {worst.seconds / best.seconds:.2f} times as fast as {slowest}"
    more = {part: worst.split[part] - best.split[part] for part in _PARTS}
    part = max(_PARTS, key=lambda part: more[part])
    if more[part] > 0.2 * (worst.gpu_hours - best.gpu_hours):
        shares = [epoch.split[part] / epoch.gpu_hours for epoch in (worst, best)]
        text += f", whose GPUs {_PARTS[part]} for {shares[0]:.0%} of their time ({chosen}: {shares[1]:.1%})"
    return text
