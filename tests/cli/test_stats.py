"""What `hbpack stats` prints for people."""

from __future__ import annotations


def test_a_group_without_packs_has_counts_alone(hbpack, tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("100\n200\n300\n")
    lines = hbpack("stats", path, "--groups", "1k:1,8k:4", "--gpus", 4).stdout.splitlines()
    table = [line for line in lines if line.startswith(" ")]
    header = next(line for line in table if "g1-8192-sp4" in line)
    stop = header.index("g1-8192-sp4") + len("g1-8192-sp4")
    start = header.index("g0-1024-sp1") + len("g0-1024-sp1")
    empty = {line[:start].strip().rstrip("0123456789. "): line[start:stop].strip() for line in table}
    assert {label: empty[label] for label in ("packs", "iterations", "samples", "tokens")} == dict.fromkeys(
        ("packs", "iterations", "samples", "tokens"), "0"
    )
    figures = ("ABR: waiting for the slowest rank", "CR: tokens in SP communication", "imbalance: slowest over mean")
    assert [empty[label] for label in figures] == ["", "", ""]
    assert sum("g1-8192-sp4" in line for line in lines) == 1  # It has no masks either.
