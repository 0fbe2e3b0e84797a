"""Resumable parts: whatever ends a run, the next one makes just what is missing, and ends in the same bytes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.engine.local import LocalEngine
from packer_cli.engine.output import Parts
from packer_cli.engine.sink import FinishedPart, Sink, WrittenFile, remove_work, write_part
from packer_cli.errors import InputError, RunError
from packer_cli.files import fingerprint
from tests.reference import tree

WORK, LISTING = ".work", "listing.json"


@dataclass(frozen=True)
class Task:
    number: int
    fingerprint: str = "of these options"
    fails: bool = False

    @property
    def name(self) -> str:
        return f"folder/part-{self.number}"


TASKS = [Task(number) for number in range(6)]


def write(task: Task, sink: Sink) -> dict[str, Any]:
    """A file, and another one for even numbers."""
    with sink.file(f"{task.name}.txt") as file:
        file.write(f"{task.number} {task.fingerprint}".encode())
    if task.fails:
        raise InputError(f"part {task.number} fails")
    if task.number % 2 == 0:
        with sink.file(f"{task.name}.even") as file:
            file.write(b"even")
    return {"number": task.number}


def make(folder: Path, task: Task) -> FinishedPart:
    return write_part(write, task, folder)


def opened(folder: Path, tasks: list[Task] = TASKS) -> Parts[Task]:
    """The parts after a look at the folder, with what its listing vouches for."""
    parts = Parts(folder, WORK, LISTING, tasks, sizes=[10 * task.number for task in tasks])
    path = folder / LISTING
    listed = json.loads(path.read_text()) if path.exists() else {}
    with LocalEngine(2) as engine:
        parts.find(engine, {name: as_part(value) for name, value in listed.items()})
    return parts


def as_part(value: dict[str, Any]) -> FinishedPart:
    return FinishedPart(**{**value, "files": tuple(WrittenFile(**file) for file in value["files"])})


def finish(folder: Path, tasks: list[Task] = TASKS) -> list[int]:
    """A run to the end: the numbers of the tasks that it did."""
    parts = opened(folder, tasks)
    todo = parts.todo
    parts.begin(lambda done, total: None)
    for task in todo:
        parts.mark(make(folder, task))
    listed = {task.name: parts.finished[task.name] for task in tasks}
    values = {name: {**vars(part), "files": [vars(file) for file in part.files]} for name, part in listed.items()}
    (folder / LISTING).write_text(json.dumps(values))
    remove_work(parts.work)
    return [task.number for task in todo]


def start(folder: Path, order: list[int]) -> None:
    """A run that does these tasks and is killed: the last one is written, and has no marker."""
    parts = opened(folder)
    parts.begin(lambda done, total: None)
    for number in order[:-1]:
        parts.mark(make(folder, TASKS[number]))
    make(folder, TASKS[order[-1]])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("expected")
    assert finish(folder) == [0, 1, 2, 3, 4, 5]
    assert not (folder / WORK).exists()
    return tree(folder)


def no_temporaries(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(".tmp")}


@settings(max_examples=25)
@given(order=st.permutations(range(6)), kept=st.integers(1, 6))
def test_a_killed_run_goes_on_with_what_is_missing(tmp_path_factory, expected, order, kept):
    folder = tmp_path_factory.mktemp("killed")
    start(folder, order[:kept])
    assert finish(folder) == sorted(order[kept - 1 :])
    assert no_temporaries(tree(folder)) == expected
    assert finish(folder) == []


@pytest.mark.parametrize("path", ["folder/part-2.txt", "folder/part-2.even"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_damaged_part_is_made_again_and_no_other(tmp_path, expected, path, damage, is_listed):
    if is_listed:
        finish(tmp_path)
    else:
        start(tmp_path, [*range(6), 0])
    file = tmp_path / path
    data = file.read_bytes()
    if damage == "flip":
        file.write_bytes(data[:3] + b"x" + data[4:])
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        file.unlink()
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in expected if name.startswith("folder/part-4")}
    assert finish(tmp_path) == [2]
    assert no_temporaries(tree(tmp_path)) == expected
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in before} == before


def test_other_fingerprints_are_other_parts(tmp_path):
    finish(tmp_path)
    changed = [Task(0), Task(1, "of others"), *TASKS[2:]]
    assert finish(tmp_path, changed) == [1]
    assert (tmp_path / "folder/part-1.txt").read_bytes() == b"1 of others"


@pytest.mark.parametrize(
    "marker",
    [
        b"",
        b"\0\0\0",
        b"[]",
        b'{"part": {}, "tokenizer": {}}',
        b'{"fingerprint": "of these options", "files": 5, "facts": {}}',
    ],
)
def test_a_marker_of_another_kind_vouches_for_nothing(tmp_path, expected, marker):
    """A power loss may empty it, and an earlier release wrote others."""
    start(tmp_path, [*range(6), 0])
    (tmp_path / WORK / "folder/part-3.json").write_bytes(marker)
    assert finish(tmp_path) == [3]
    assert no_temporaries(tree(tmp_path)) == expected


def test_a_marker_of_another_release_vouches_for_nothing(tmp_path):
    start(tmp_path, [*range(6), 0])
    path = tmp_path / WORK / "folder/part-3.json"
    part = {**json.loads(path.read_text())["part"], "release": "0.0"}
    path.write_text(json.dumps({"part": part, "xxh3": fingerprint(part)}))
    assert finish(tmp_path) == [3]


def test_a_damaged_marker_vouches_for_nothing(tmp_path, expected):
    """Its facts, such as a number of samples, would otherwise be taken as they are."""
    start(tmp_path, [*range(6), 0])
    path = tmp_path / WORK / "folder/part-3.json"
    text = path.read_text()
    for digit in (match.start() for match in re.finditer(r"\d", text)):
        path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
        assert 3 in {task.number for task in opened(tmp_path).todo}
    path.write_text(text)
    assert 3 not in {task.number for task in opened(tmp_path).todo}


def test_the_listing_stays_while_a_part_is_replaced(tmp_path, expected):
    """The part will have the same bytes, so that nothing is lost if the run is killed."""
    finish(tmp_path)
    (tmp_path / "folder/part-1.txt").write_bytes(b"damaged")
    before = (tmp_path / LISTING).read_bytes()
    parts = opened(tmp_path)
    parts.begin(lambda done, total: None)
    parts.mark(make(tmp_path, TASKS[1]))
    assert (tmp_path / LISTING).read_bytes() == before
    assert opened(tmp_path).todo == []
    assert finish(tmp_path) == []
    assert tree(tmp_path) == expected


def test_an_error_keeps_what_was_finished_and_leaves_no_temporary_file(tmp_path, expected):
    tasks = [*TASKS[:4], Task(4, fails=True), TASKS[5]]
    with pytest.raises(InputError, match="part 4 fails"):
        finish(tmp_path, tasks)
    assert not list(tmp_path.rglob(".*.tmp"))
    assert finish(tmp_path) == [4, 5]
    assert tree(tmp_path) == expected


def test_a_file_that_cannot_be_renamed_ends_the_run(tmp_path):
    (tmp_path / "folder/part-5.txt").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        finish(tmp_path)
    assert (tmp_path / WORK / "folder/part-4.json").exists()
    assert not (tmp_path / WORK / "folder/part-5.json").exists()


def test_parts_come_from_processes_in_any_order(tmp_path, expected):
    parts = opened(tmp_path)
    shown = []
    parts.begin(lambda *done: shown.append(done))
    with LocalEngine(2) as engine:
        for _, part in engine.run(Make(tmp_path), parts.todo):
            parts.mark(part)
            assert part.facts == {"number": int(part.name[-1])}
    assert shown[0] == (0, 150)
    assert shown[-1] == (150, 150)
    assert finish(tmp_path) == []
    assert tree(tmp_path) == expected


@dataclass(frozen=True)
class Make:
    folder: Path

    def __call__(self, task: Task) -> FinishedPart:
        return make(self.folder, task)


def test_progress_begins_with_what_is_there(tmp_path):
    start(tmp_path, [3, 5, 0])
    shown = []
    opened(tmp_path).begin(lambda *done: shown.append(done))
    assert shown == [(80, 150)]


def test_files_of_a_node_that_this_machine_does_not_see(tmp_path):
    parts = opened(tmp_path)
    parts.begin(lambda done, total: None)
    part = make(tmp_path, TASKS[1])
    (tmp_path / part.files[0].path).unlink()  # As on a node with a disk of its own.
    with pytest.raises(RunError) as caught:
        parts.mark(part)
    assert str(caught.value) == (
        f"'{tmp_path / part.files[0].path}', which a node has written, does not exist on this machine; name an output "
        "folder that this machine and all nodes share"
    )
    assert TASKS[1] in opened(tmp_path).todo
