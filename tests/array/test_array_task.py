"""Which task of an array a run is, and what its share is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.engine.array import ArrayRecords, ArrayTask, TaskShare
from packer_cli.engine.scheduler import array_ids
from packer_cli.errors import ConfigError


@given(sizes=st.lists(st.integers(0, 50)), num_tasks=st.integers(1, 9))
def test_each_item_is_of_one_task_and_the_tasks_are_in_order(sizes: list[int], num_tasks: int) -> None:
    tasks = [ArrayTask(index, num_tasks) for index in range(num_tasks)]
    shares = [task.share(range(len(sizes)), sizes) for task in tasks]
    assert [item for share in shares for item in share] == list(range(len(sizes)))
    total, start = sum(sizes), 0
    for item, size in enumerate(sizes):
        near = [task.index for task in tasks if task.overlaps(start, start + size, total)]
        assert next(i for i, share in enumerate(shares) if item in share) in near
        start += size
    if total and num_tasks > 1:
        most = max(sum(sizes[item] for item in share) for share in shares)
        assert most <= total / num_tasks + 2 * max(sizes)


def slurm(number: int, first: int, last: int, count: int, step: int = 1) -> dict[str, str]:
    values = {"ID": number, "MIN": first, "MAX": last, "COUNT": count, "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("shard", "environment", "task"),
    [
        (None, {}, None),
        ("3/4", {}, (3, 4)),
        ("3/4", slurm(0, 0, 7, 8), (3, 4)),
        ("0/1", slurm(3, 0, 7, 8), (0, 1)),
        (None, slurm(0, 0, 7, 8), (0, 8)),
        (None, slurm(7, 1, 8, 8), (6, 8)),
        (None, slurm(14, 10, 18, 5, 2), (2, 5)),
        (None, slurm(3, 3, 3, 1), (0, 1)),
    ],
)
def test_the_first_task(tmp_path, shard, environment, task):
    ids = array_ids(shard, environment)
    found = ids and ArrayRecords(tmp_path).find_task(ids)
    assert (found and (found.index, found.num_tasks)) == task


@pytest.mark.parametrize("text", ["4/4", "-1/4", "0/0", "3", "a/b", "1/4/2", "", "1.0/4"])
def test_a_wrong_shard(text):
    with pytest.raises(ConfigError) as error:
        array_ids(text, {})
    assert str(error.value) == f"--shard {text}: must be I/N with 0 <= I < N, such as 0/4 for the first of four tasks"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX is 2, and does not say of how many; give --shard 2/N"),
        (slurm(3, 3, 9, 3), "SLURM_ARRAY_TASK_ID is 3, and does not say of how many; give --shard 3/N"),
        (
            {"SLURM_ARRAY_TASK_ID": "x"},
            "SLURM_ARRAY_TASK_ID: 'x' is not an integer; write it in digits, for example 8",
        ),
    ],
)
def test_a_scheduler_that_does_not_say_enough(tmp_path, environment, message):
    with pytest.raises(ConfigError) as error:
        ArrayRecords(tmp_path).find_task(array_ids(None, environment))  # type: ignore[arg-type]
    assert str(error.value) == message


def joined(work: Path, shard: str | None, environment: dict[str, str], agreed: str = "a", running=()) -> TaskShare:
    records = ArrayRecords(work)
    ids = array_ids(shard, environment)
    assert ids is not None
    task = records.find_task(ids)
    share = TaskShare(records, task, ids, lambda pin: running)
    share.join({"the options": agreed})
    return share


@pytest.mark.parametrize("first", [0, 1])
def test_the_ids_of_a_few_tasks_that_run_again_are_those_of_the_first_run(tmp_path, first):
    """Slurm's count, first id and step are then of these tasks alone, and may look like a whole array's."""
    joined(tmp_path, None, slurm(first + 2, first, first + 7, 8)).record({})
    for environment in (slurm(first + 3, first + 3, first + 7, 2, 4), slurm(first + 3, first + 3, first + 3, 1)):
        ids = array_ids(None, environment)
        assert ids is not None
        assert ArrayRecords(tmp_path).find_task(ids) == ArrayTask(3, 8)
    assert ArrayRecords(tmp_path).find_task(array_ids("3/8", {})) == ArrayTask(3, 8)
    if first == 0:
        ids = array_ids(None, {"JOB_COMPLETION_INDEX": "3"})
        assert ArrayRecords(tmp_path).find_task(ids) == ArrayTask(3, 8)
    with pytest.raises(ConfigError) as error:
        ArrayRecords(tmp_path).find_task(array_ids(None, slurm(8 + first, first, 8 + first, 9)))
    assert str(error.value) == (
        f"SLURM_ARRAY_TASK_ID is {8 + first}: the 8 tasks of an array make this output, with the ids {first} to "
        f"{first + 7}; give one of these, or --shard 0/1 to make the rest in one run, or remove "
        f"'{tmp_path}/array' to start over with another number (finished parts are kept)"
    )


def test_another_number_of_tasks_is_refused_once_one_is_done(tmp_path):
    share = joined(tmp_path, "1/4", {})
    pin = ArrayRecords(tmp_path).pin()
    assert pin is not None
    remedies = (
        f"--shard 0/1 to make the rest in one run, or remove '{tmp_path}/array' to start over with another number "
        "(finished parts are kept)"
    )
    with pytest.raises(ConfigError) as error:
        joined(tmp_path, "1/3", {}, running=[pin.fingerprint])
    assert str(error.value) == f"task 1/3: the 4 tasks of an array make this output; {remedies}"
    joined(tmp_path, "1/3", {}, running=["other"])  # Nothing is done, and nobody runs who has joined the four.
    with pytest.raises(ConfigError) as error:
        share.record({})
    assert str(error.value) == f"task 1/4: the 3 tasks of an array make this output; {remedies}"
    joined(tmp_path, "1/3", {}).record({})
    with pytest.raises(ConfigError) as error:
        joined(tmp_path, "1/4", {})
    assert str(error.value) == (
        "--shard 1/4: the 3 tasks of an array make this output; give --shard I/3, or --shard 0/1 to make the rest in "
        f"one run, or remove '{tmp_path}/array' to start over with another number (finished parts are kept)"
    )


def test_tasks_that_differ_are_refused(tmp_path):
    joined(tmp_path, "1/4", {}).record({})
    with pytest.raises(ConfigError) as error:
        joined(tmp_path, "2/4", {}, "b")
    assert str(error.value) == (
        "task 2/4 and the tasks before it differ in the options; run all tasks with the same, or remove "
        f"'{tmp_path}/array' to start over (finished parts that fit are kept)"
    )


def test_records_that_another_run_has_removed(tmp_path):
    share = joined(tmp_path, "1/4", {})
    shutil.rmtree(tmp_path / "array")
    with pytest.raises(ConfigError) as error:
        share.record({})
    assert str(error.value) == (
        "task 1/4: the records of the array are gone, as another run has completed or removed the output; run the "
        "task again"
    )


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"pin": "other", "parts": []}'])
def test_a_damaged_record_counts_for_nothing(tmp_path, damage):
    shares = [joined(tmp_path, f"{index}/2", {}) for index in range(2)]
    for share in shares:
        share.record({})
    assert shares[0].all_parts(dict) == [{}, {}]
    (tmp_path / "array" / "task-000001.json").write_bytes(damage)
    assert shares[0].all_parts(dict) is None
    assert ArrayRecords(tmp_path).done() == [0]
