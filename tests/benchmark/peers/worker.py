"""`python -m tests.benchmark.peers.worker NAME CASES`: measure one contender; a line of JSON for each case.

Seconds are CPU time: nothing here uses two cores, so this is the wall time on an idle machine, whatever else runs.

CASES is a JSON file: a list of [file of lengths (.npy), capacity], mix by mix, each ten times as large as the one
before. After a case that took too long, the rest of its mix is skipped.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tests.benchmark.peers.contenders import Packer, load

TOO_LONG = 45.0
"""Seconds after which a call is given up."""
ENOUGH = 1.0
"""Seconds of measuring after which no further round begins."""
_FEW = 1000
"""Samples of a first call, which is not reported: it compiles, and shows how the time grows."""


class _TooLongError(Exception):
    pass


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("cases", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    try:
        packer, version = load(arguments.name)
    except ImportError as error:  # also a missing package
        print(json.dumps({"missing": f"{type(error).__name__}: {error}"}))
        return 0
    print(json.dumps({"version": version}), flush=True)
    last: dict[int, tuple[float, float]] = {}
    for path, capacity in json.loads(arguments.cases.read_text()):
        lengths = np.load(path)
        if capacity not in last:
            few = lengths[:_FEW].copy()
            packer.pack(packer.prepare(few), capacity)
            last[capacity] = min(_measure(packer, few, capacity, 3, is_slow=False)["seconds"]), 10.0
        seconds, growth = last[capacity]
        if seconds * growth > TOO_LONG:
            case: dict[str, Any] = {"skipped": f"over {TOO_LONG:.0f} s expected"}
        else:
            try:
                case = _measure(packer, lengths, capacity, arguments.rounds, is_slow=seconds * growth > ENOUGH)
            except _TooLongError:
                case = {"skipped": f"over {TOO_LONG:.0f} s"}
        # Cases grow tenfold: expect the same growth of the time as last time, but at least tenfold.
        took = min(case.get("seconds", [float("inf")]))
        last[capacity] = took, max(10.0, took / seconds)
        print(json.dumps(case), flush=True)
    return 0


def _measure(packer: Packer, lengths: np.ndarray, capacity: int, rounds: int, *, is_slow: bool) -> dict[str, Any]:
    seconds: list[float] = []
    signal.signal(signal.SIGPROF, _give_up)
    while len(seconds) < rounds and sum(seconds) < ENOUGH:
        prepared = packer.prepare(lengths)
        if is_slow:  # while such a timer runs, the clock of CPU time is coarse
            signal.setitimer(signal.ITIMER_PROF, TOO_LONG)
        start = time.process_time()
        result = packer.pack(prepared, capacity)
        seconds.append(time.process_time() - start)
        signal.setitimer(signal.ITIMER_PROF, 0)
    sizes, members = packer.packs(result)
    packed = members if packer.gives_lengths else lengths[members]
    ends = np.cumsum(sizes)
    sums = np.concatenate([[0], np.cumsum(packed, dtype=np.int64)])
    return {
        "seconds": seconds,
        "packs": len(sizes),
        "fits": bool((sums[ends] - sums[ends - sizes] <= capacity).all()),
        "all_once": bool(
            np.array_equal(np.sort(packed), np.sort(lengths))
            and (packer.gives_lengths or np.array_equal(np.sort(members), np.arange(len(lengths))))
        ),
    }


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _TooLongError


if __name__ == "__main__":
    sys.exit(main())
