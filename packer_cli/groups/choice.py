"""The choice of groups, with its reasons.

Finds the groups with the shortest predicted epoch, by dynamic programming over candidate lengths.
The predicted seconds of all samples up to a capacity are `(1 - f) C + g`, with C those up to the previous group (see
`groups.estimate`). f and g do not depend on the groups below, so the least C gives the least total. The best k groups
that end at a length therefore follow from the best k - 1 groups that end at each shorter one: the search is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from packer_cli.config import PlanConfig
from packer_cli.cost.predict import GpuModel
from packer_cli.cost.profile import Profile
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.format.metrics import HBP
from packer_cli.groups.estimate import EpochModel, LengthSums
from packer_cli.groups.settings import (
    Setting,
    best_settings,
    candidate_lengths,
    hbp_lengths,
    measured_settings,
    predicted_settings,
    settings_of,
)
from packer_cli.plan.core.groups import Group

MOST_COMPARED = 4
"""Sets of 1 to this many groups are compared, even if fewer may be chosen."""
NOT_WORTH_A_GROUP = 0.004
"""A gain of at most this share of the epoch is smaller than the error of any prediction."""

LONGEST = "the longest alone"
"""Name of an alternative."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A set of groups to compare the choice with."""

    name: str
    groups: tuple[Group, ...]
    seconds: float
    """Predicted epoch time."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen groups, and what they were compared with."""

    groups: tuple[Group, ...]
    """By increasing capacity."""
    seconds: float | None = None
    """Predicted epoch time, planned if it was; None without a model."""
    estimated: float | None = None
    """Epoch time (s) predicted from the lengths alone."""
    lockstep: str = "all"
    """The GPUs in lockstep, as in the plan options."""
    alternatives: tuple[Alternative, ...] = ()
    """HBP's, one group at the longest length, the best of 1, 2, .. groups; these include the choice."""
    settings: Mapping[int, Sequence[Setting]]
    """By length: the candidates of algorithm 1, and the chosen lengths."""


def choose_groups(
    model: GpuModel,
    lengths: ArrayLike,
    config: PlanConfig,
    *,
    layouts: Sequence[Layout] | None = None,
    profile: Profile | None = None,
    planned: Callable[[Sequence[Group]], float] | None = None,
    tried: Callable[[Sequence[Group]], float] | None = None,
) -> Choice:
    """Choose the groups for these lengths. Price: O(n log n), a few milliseconds for the search, and some plans.

    Args:
        lengths: int[n], n > 0, of the samples to pack; none is over `max_length`.
        layouts: those that groups may have, by rising degree; None: every SP degree.
        profile: if its rows reach the longest sample, algorithm 1 uses them instead of the model's predictions.
        config: with the GPUs, the algorithm, the largest allowed capacity, which is then a candidate, and the most
            groups that the search may choose: of the sets within `NOT_WORTH_A_GROUP` of the shortest epoch, it takes
            the one with the fewest. Algorithm 1 chooses up to four.
        planned: seconds of an epoch that is planned with some groups. The search finds the best sets of each number by
            an estimate; which of them to take, these seconds decide. None: the estimate does.
        tried: the same of some of the samples. With it, neighbors of the set taken are tried, see `improve`.

    Raises:
        ConfigError: the longest sample fits on no SP degree.
    """
    sums, num_gpus = LengthSums(lengths), config.gpus
    max_length, max_groups, is_hbp = config.max_length, config.max_groups, config.used_algorithm != "search"
    layouts = model.layouts(num_gpus) if layouts is None else layouts
    # A profile is of rows that SP alone divides.
    is_measured = all(each == Layout(sp=each.sp) for each in layouts)
    settings = _measured_for_hbp(sums, num_gpus, profile, max_length) if is_measured else {}
    settings = settings or _predicted_for_hbp(model, sums, layouts, num_gpus, max_length)
    ways = {
        length: settings_of(model, length, layouts)
        for length in candidate_lengths(sums.longest, model.sp_sizes, max_length)
    }
    best = best_settings(settings)
    if not best or max(best) < sums.longest:
        raise ConfigError(_why_not(model, sums.longest, layouts, num_gpus))
    hbp = hbp_groups(best, lambda length: next(iter(settings_of(model, length, layouts)), None))
    # Measured settings fit even if the model says otherwise. The search gets all that algorithm 1 may choose.
    for group in (*hbp, *(setting.group for setting in best.values())):
        if group not in ways.setdefault(group.capacity, []):
            ways[group.capacity].append(group)
    epoch = EpochModel(model.cost, sums, num_gpus)
    found = search_groups(epoch, ways, max(max_groups, MOST_COMPARED))
    one = (best[max(best)].group,)
    sets = [
        Alternative(name=name, groups=groups, seconds=epoch.gpu_seconds(groups) / num_gpus)
        for name, groups in ((HBP, hbp), (LONGEST, one))
    ]
    estimated = {each.groups: each.seconds for each in (*sets, *found)}
    if planned is not None:
        sets, found = ([replace(each, seconds=planned(each.groups)) for each in some] for some in (sets, found))
    allowed = found[:max_groups]
    shortest = min(each.seconds for each in allowed)
    fewest = next(each for each in allowed if each.seconds <= (1 + NOT_WORTH_A_GROUP) * shortest)
    chosen = sets[0] if is_hbp else fewest
    if tried is not None and planned is not None and not is_hbp:
        few = (each.groups for each in (*sets, *allowed) if len(each.groups) <= max_groups)
        start = min(few, key=tried)
        groups = improve(start, epoch, ways, tried, max_groups)
        better = Alternative(name="best of their neighbors", groups=groups, seconds=planned(groups))
        estimated[groups] = epoch.gpu_seconds(groups) / num_gpus
        worth = NOT_WORTH_A_GROUP * (len(groups) > len(chosen.groups))
        if better.seconds < chosen.seconds * (1 - worth):
            chosen = better
            found += [better] if all(each.groups != groups for each in found) else []
    shown = [group.capacity for group in chosen.groups if group.capacity not in settings]
    return Choice(
        groups=chosen.groups,
        seconds=chosen.seconds,
        estimated=estimated[chosen.groups],
        alternatives=(*sets, *found),
        settings=settings | predicted_settings(model, shown, layouts, num_gpus, sums),
    )


def choose_measured_groups(
    profile: Profile, lengths: ArrayLike, num_gpus: int, max_length: int | None = None
) -> Choice:
    """Apply algorithm 1 to measured rows that are too few for a model, and so predict no epoch.

    Raises:
        ConfigError: no row holds the longest sample.
    """
    sums = LengthSums(lengths)
    settings = _measured_for_hbp(sums, num_gpus, profile, max_length)
    if not settings:
        longest = max((row.length for row in profile.iterations), default=0)
        raise ConfigError(
            f"the longest sample has {sums.longest:,} tokens, and the profile's rows go to {longest:,} and "
            "are too few to predict others: measure longer ones with hbpack profile, or give --max-length"
        )
    return Choice(groups=hbp_groups(best_settings(settings), lambda length: None), settings=settings)


def _measured_for_hbp(
    sums: LengthSums, num_gpus: int, profile: Profile | None, max_length: int | None
) -> dict[int, list[Setting]]:
    """List the measured settings, up to the first length that holds the longest sample; empty if no length does."""
    if profile is None:
        return {}
    measured = measured_settings(profile, num_gpus, sums)
    enough = [
        length
        for length in best_settings(measured)
        if length >= sums.longest and (max_length is None or length <= max_length)
    ]
    return {length: rows for length, rows in measured.items() if length <= enough[0]} if enough else {}


def _predicted_for_hbp(
    model: GpuModel, sums: LengthSums, layouts: Sequence[Layout], num_gpus: int, max_length: int | None
) -> dict[int, list[Setting]]:
    """Predict the settings of the powers of two that the data needs."""
    lengths = hbp_lengths(sums.longest)
    if max_length is not None and lengths[-1] > max_length:
        lengths = [length for length in lengths if length < max_length] + [max_length]
    if lengths[-1] > sums.longest and not settings_of(model, lengths[-1], layouts):
        # The next power of two does not fit, but the longest sample may.
        between = candidate_lengths(sums.longest, model.sp_sizes, max_length)
        between = [length for length in between if sums.longest <= length < lengths[-1]]
        between = [length for length in between if settings_of(model, length, layouts)]
        lengths[-1] = between[-1] if between else sums.longest
    return predicted_settings(model, lengths, layouts, num_gpus, sums)


def _why_not(model: GpuModel, longest: int, layouts: Sequence[Layout], num_gpus: int) -> str:
    fits, degree = max(map(model.memory.longest, layouts)), max(each.sp for each in layouts)
    if not fits:
        return f"no sample fits: a GPU's memory is full before any; use more than {num_gpus} GPUs, or larger ones"
    return (
        f"the longest sample has {longest:,} tokens, and at most {fits:,} fit, with all {model.memory.num_layers} "
        f"layers checkpointed and SP degree {degree}: use a higher degree (more GPUs, or a model with more "
        f"heads) or GPUs with more memory; or cut or leave out what is longer: --max-length "
        f"{fits // 1024 * 1024 or fits} with --overflow split or drop"
    )


def hbp_groups(best: Mapping[int, Setting], setting_of: Callable[[int], Group | None]) -> tuple[Group, ...]:
    """Choose groups by increasing capacity: `[l1, l_best, l2, l_max]` if l2 > l_best, else `[l1, l_best, l_max]`.

    l_best has the least time per token, l_max is the longest; l1 = floor(l_best / sp_best) and l2 = floor(l_max /
    sp_max) are the lengths that need no communication. Equal lengths become one group.

    Args:
        best: the fastest setting of each candidate length that fits; at least one.
        setting_of: gives the setting on one GPU of a length that is not a candidate; None if unknown.
    """
    fastest = min(best.values(), key=lambda setting: (setting.speed, setting.group.capacity))
    longest = best[max(best)]
    groups = {longest.group.capacity: longest.group, fastest.group.capacity: fastest.group}
    short = [fastest.group]
    if longest.group.capacity // longest.group.sp_size > fastest.group.capacity:
        short.append(longest.group)
    for group in short:
        length = group.capacity // group.sp_size
        if length not in groups:
            # Each GPU holds as many tokens as in that group, so the same layers fit.
            same = replace(group, capacity=length, sp_size=1)
            groups[length] = setting_of(length) or same
    return tuple(groups[length] for length in sorted(groups))


def improve(
    groups: tuple[Group, ...],
    model: EpochModel,
    settings: Mapping[int, Sequence[Group]],
    seconds: Callable[[Sequence[Group]], float],
    max_groups: int,
) -> tuple[Group, ...]:
    """Leave out, lengthen, shorten, add or run a group otherwise, as long as the planned epoch becomes shorter.

    Price: 60 plans at most, or 120 of few samples; of the neighbors, those of the least estimates are planned.
    """
    left, at_once = (120, 60) if model.sums.num_samples <= FEW else (60, 20)
    known = {groups: seconds(groups)}
    while left > 0:
        found = dict.fromkeys(_neighbors(groups, model, settings))
        new = [each for each in found if each not in known and len(each) <= max_groups]
        new.sort(key=model.gpu_seconds)
        for each in new[: min(left, at_once)]:
            left -= 1
            known[each] = seconds(each)
            if known[each] < known[groups] * (1 - NOT_WORTH_A_GROUP * (len(each) > len(groups))):
                groups = each
                break
        else:
            break
    return groups


FEW = 2_000
"""Samples, up to which plans take the place of estimates, which know nothing of GPUs that stay idle."""
_STEPS = (0, -1, 1, -2, 2, -4, 4, -8, 8)
"""From a candidate length to those near it; eight are an octave."""


def _neighbors(
    groups: tuple[Group, ...], model: EpochModel, settings: Mapping[int, Sequence[Group]]
) -> Iterator[tuple[Group, ...]]:
    lengths = sorted(length for length in settings if settings[length])
    for i, group in enumerate(groups):
        before, after = groups[:i], groups[i + 1 :]
        if after:
            yield (*before, *after)
        for length in lengths[:: _STEPS[-1] // 2]:
            if (before[-1].capacity if before else 0) < length < group.capacity:
                yield from ((*before, other, group, *after) for other in settings[length])
        least = before[-1].capacity + 1 if before else 1
        least, most = (least, after[0].capacity - 1) if after else (max(least, model.sums.longest), lengths[-1])
        place = lengths.index(group.capacity)
        for near in (place + step for step in _STEPS):
            if 0 <= near < len(lengths) and least <= lengths[near] <= most:
                yield from ((*before, other, *after) for other in settings[lengths[near]])


def search_groups(model: EpochModel, settings: Mapping[int, Sequence[Group]], max_groups: int) -> list[Alternative]:
    """Find the best sets of exactly 1, 2, .. `max_groups` groups, or fewer if there are fewer lengths.

    Every group has samples of its own, since one without changes nothing. Ties go to the set with longer rows. Price:
    O(groups * candidates^2 * degrees) array elements.

    Args:
        settings: candidate length to its settings. The longest length holds the longest sample; lengths without
            settings are skipped.
    """
    lengths = np.array([0, *sorted(length for length in settings if settings[length])], dtype=np.int64)
    steps = []
    for j, length in enumerate(lengths.tolist()[1:], 1):
        share, seconds_of = model.packs_above(lengths[:j], length)
        steps.append([(share, seconds_of(group), group) for group in settings[length]])
    samples = model.sums.up_to(lengths)[0]
    # best[j]: least GPU-seconds of all samples up to lengths[j], with the current number of groups; sets[j]: these.
    best = np.where(np.arange(len(lengths)) == 0, 0.0, np.inf)
    sets: list[tuple[Group, ...]] = [()] * len(lengths)
    found = []
    for number in range(1, min(max_groups, len(lengths) - 1) + 1):
        following = np.full(len(lengths), np.inf)
        longer: list[tuple[Group, ...]] = [()] * len(lengths)
        for j in range(1, len(lengths)):
            for share, own, group in steps[j - 1]:
                is_open = np.isfinite(best[:j]) & (samples[:j] < samples[j])
                totals = np.where(is_open, (1 - share) * np.where(is_open, best[:j], 0.0) + own, np.inf)
                i = len(totals) - 1 - int(np.argmin(totals[::-1]))
                if totals[i] < following[j]:
                    following[j], longer[j] = totals[i], (*sets[i], group)
        best, sets = following, longer
        ends = np.where(lengths >= model.sums.longest, best, np.inf)
        last = len(ends) - 1 - int(np.argmin(ends[::-1]))
        if np.isfinite(ends[last]):
            name = f"best of {number}" if number > 1 else "best single group"
            seconds = float(ends[last]) / model.num_gpus
            found.append(Alternative(name=name, groups=sets[last], seconds=seconds))
    return found
