"""Parts in remote storage: which of them an interrupted run leaves for the next one, without reading them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

from packer_cli.engine.local import LocalEngine
from packer_cli.engine.output import Parts
from packer_cli.engine.sink import Sink, write_part
from packer_cli.remote.path import RemotePath

WORK, LISTING = ".work", "listing.json"


@dataclass(frozen=True)
class Task:
    name: str
    fingerprint: str = "of these options"


TASKS = [Task(f"shards/part-{number}") for number in range(3)]


@pytest.fixture
def folder() -> Any:
    return RemotePath(f"memory://parts-{time.monotonic_ns()}/out")


def write(task: Task, sink: Sink) -> dict[str, Any]:
    with sink.file(task.name) as file:
        file.write(f"{task.name} {task.fingerprint}".encode())
    return {"name": task.name}


def make(folder: Any, tasks: list[Task], stop: int | None = None) -> list[str]:
    """Make what is missing, up to `stop` parts; which parts that were."""
    parts = Parts(folder, WORK, LISTING, tasks, [1] * len(tasks))
    parts.find(LocalEngine(1), {})
    made = []
    parts.begin(lambda done, total: None)
    for task in parts.todo[:stop]:
        parts.mark(write_part(write, task, folder))
        made.append(task.name)
    return made


def test_finished_parts_are_kept_unread(folder, monkeypatch):
    assert make(folder, TASKS, stop=2) == [task.name for task in TASKS[:2]]
    read = RemotePath.read_bytes

    def only_markers(path: RemotePath) -> bytes:
        assert path.suffix == ".json"
        return read(path)

    monkeypatch.setattr(RemotePath, "read_bytes", only_markers)
    monkeypatch.setattr(RemotePath, "read_range", None)
    assert make(folder, TASKS) == [TASKS[2].name]
    assert make(folder, TASKS) == []


def test_a_part_that_was_written_again_is_not_kept(folder):
    make(folder, TASKS)
    place = folder / TASKS[1].name
    place.write_bytes(place.read_bytes())  # Of the same size; the storage says that it is another version.
    assert make(folder, TASKS) == [TASKS[1].name]
    (folder / TASKS[0].name).unlink()
    assert make(folder, TASKS) == [TASKS[0].name]


def test_a_marker_does_not_vouch_for_what_another_run_wrote(folder):
    """A run with other options is killed after it has written a part, and before the part's marker."""
    make(folder, TASKS)
    others = [Task(task.name, "of other ones..!") for task in TASKS]
    parts = Parts(folder, WORK, LISTING, others, [1] * 3)
    parts.find(LocalEngine(1), {})
    parts.begin(lambda done, total: None)
    write_part(write, others[0], folder)
    assert len({len(task.fingerprint) for task in (*TASKS, *others)}) == 1
    assert make(folder, TASKS) == [TASKS[0].name]
    assert (folder / TASKS[0].name).read_bytes() == b"shards/part-0 of these options"
