"""Groups from what was measured: HBP's own tables, and settings that a profile holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer_cli.config import PlanConfig
from packer_cli.config.gpu_model import load_models, read_profile
from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.errors import ConfigError
from packer_cli.groups.choice import choose_measured_groups
from packer_cli.groups.estimate import LengthSums
from packer_cli.groups.settings import best_settings, measured_settings
from packer_cli.plan.core.groups import Group

GPUS = 32
ANY = LengthSums([100, 131072])
"""For rows whose time does not depend on the data."""


def published(number: int) -> Profile:
    return read_profile(Path(__file__).parent / "data" / f"hbp-table-{number}.json")


def text_of(groups: tuple[Group, ...]) -> str:
    return ",".join(f"{group.capacity // 1024}k:{group.sp_size}:{group.checkpoint_layers}" for group in groups)


def test_algorithm_1_gives_the_groups_of_the_paper():
    """Table 11: auto-selection gives 16K without SP, and 128K on eight GPUs."""
    choice = choose_measured_groups(published(19), [100, 131072], GPUS)
    assert choice is not None
    assert text_of(choice.groups) == "16k:1:28,128k:8:28"
    assert choice.seconds is None


def test_the_fastest_setting_of_32k_is_that_of_table_18():
    best = best_settings(measured_settings(published(18), GPUS, ANY))
    assert text_of((best[32768].group,)) == "32k:8:8"


def test_the_fastest_settings_of_table_4():
    best = best_settings(measured_settings(published(4), GPUS, ANY))
    assert text_of(tuple(setting.group for setting in best.values())) == "32k:8:8,64k:8:24,128k:8:29"


def test_what_is_out_of_memory_is_out_and_few_layers_come_first():
    rows = published(18).iterations
    slower = rows[3].model_copy(update={"checkpoint_layers": 16, "seconds": 1.0})
    profile = published(18).model_copy(update={"iterations": (*rows[:4], slower)})
    assert text_of((best_settings(measured_settings(profile, GPUS, ANY))[32768].group,)) == "32k:8:8"
    only_broken = profile.model_copy(update={"iterations": rows[:1]})
    assert best_settings(measured_settings(only_broken, GPUS, ANY)) == {}
    with pytest.raises(ConfigError, match="the longest sample has 100 tokens"):
        choose_measured_groups(only_broken, [100], GPUS)


def test_times_are_compared_at_equal_numbers_of_tokens():
    rows = published(18).iterations
    twice = rows[2].model_copy(update={"tokens": rows[2].tokens * 2, "seconds": 5.0})
    profile = published(18).model_copy(update={"iterations": (*rows[:2], twice, *rows[3:])})
    assert text_of((best_settings(measured_settings(profile, GPUS, ANY))[32768].group,)) == "32k:4:23"


def test_degrees_that_do_not_divide_the_gpus_are_out():
    assert {each.group.sp_size for each in measured_settings(published(18), 4, ANY)[32768]} == {1, 2, 4}


def test_a_long_row_is_judged_by_the_work_of_the_data():
    """A row of one long sample can never win; one of the data's samples can, and its time is linear in work."""

    def row(length: int, sp_size: int, samples: int) -> IterationRow:
        work = length**2 // samples
        seconds = (1.0 if length == 8192 else 15.0) + 3e-9 * work / sp_size
        return IterationRow(
            length=length, sp_size=sp_size, seconds=seconds, tokens=length * GPUS // sp_size, work=work
        )

    measured = [row(length, sp, samples) for length, sp in ((8192, 1), (131072, 1)) for samples in (1, 4, 16)]
    profile = published(19).model_copy(update={"iterations": tuple(measured)})
    chats = LengthSums([1000] * 100 + [131072])
    work = chats.density_up_to(131072) * 131072
    found = measured_settings(profile, GPUS, chats)
    assert [len(alike) for alike in found.values()] == [1, 1]
    assert found[131072][0].seconds == pytest.approx(15.0 + 3e-9 * work)
    assert found[8192][0].seconds == pytest.approx(1.0 + 3e-9 * 1000 * 8192)  # Beyond what was measured.
    shorter = LengthSums([1000])
    best = best_settings(measured_settings(profile, GPUS, shorter))
    assert best[131072].seconds_per_token < best[8192].seconds_per_token
    single = profile.model_copy(update={"iterations": tuple(measured[::3])})
    best = best_settings(measured_settings(single, GPUS, shorter))
    assert best[131072].seconds_per_token > best[8192].seconds_per_token


@pytest.mark.parametrize(
    ("few", "many", "samples", "expected"),
    [
        (0.1, 1.0, [10], 0.05),  # Half of the least, where the line falls below zero
        (0.501, 1.0, [10], 0.2505),  # or nearly to it.
        (1.0, 0.9, [10], 1.0),  # A line that rises towards less work is noise.
        (1.0, 0.9, [8192], 0.9),
    ],
)
def test_beyond_what_was_measured_times_stay_near_it(few, many, samples, expected):
    rows = [
        IterationRow(length=8192, sp_size=1, seconds=seconds, tokens=8192, work=work)
        for seconds, work in ((many, 8192**2 - 1), (few, 8192**2 // 2))
    ]
    profile = published(19).model_copy(update={"iterations": tuple(rows)})
    assert measured_settings(profile, GPUS, LengthSums(samples))[8192][0].seconds == pytest.approx(expected)


def test_what_is_assumed_in_place_of_a_profile_counts_in_the_search():
    path = str(Path(__file__).parent / "data" / "hbp-table-4.json")
    config = PlanConfig(groups="auto", gpus=GPUS, profile=path, assume="exposed_sync=0.9")
    model, profile = load_models(config, "--groups auto")
    assert model is not None
    assert profile is not None
    assert model.origin["assumed"]["exposed_sync"] == profile.assumed["exposed_sync"] == 0.9
