"""What other packages bring: found when named, recorded, missed when it is gone; and a broken one harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.errors import ConfigError, RunError
from packer_cli.loader import PackedDataset
from packer_cli.plan.strategies.by_group.strategy import GroupStrategy
from packer_cli.plugins import OBJECT, Registry
from packer_cli.testing import check_packing, check_strategy
from tests.cli_runner import HBPACK, pack_words, run
from tests.docs.blocks import read_blocks

POINTS = {
    "packings": {"two-ends": "two_ends:two_ends"},
    "strategies": {"rising": "rising:Rising", "broken": "broken:Broken", "wrong": "two_ends:two_ends"},
    "exports": {"lengths": "lengths_of:Lengths"},
    "formats": {"plain": "plain:FORMAT"},
    "shapes": {"report": "report_shape:SHAPE"},
}
MODULES = {
    "broken": "import no_such_module",
    "plain": """
        from packer_cli.loader.formats.base import Batch, Format
        FORMAT = Format(adapt=lambda micro: Batch({"pack": micro.pack_id}))
    """,
    "lengths_of": """
        from packer_cli.export.job import Format

        class Lengths(Format):
            def write_part(self, job, part, sink):
                return {"tokens": job.row_tokens()[part.first : part.stop].tolist()}

            def finish(self, job, parts, ranges, sink):
                with sink.file("lengths.txt") as file:
                    file.write(" ".join(str(n) for part in parts for n in part["tokens"]).encode())
    """,
    "report_shape": """
        from packer_cli.corpus.records.base import Shape
        from packer_cli.corpus.types import Document

        def parse(record, line):
            return Document("text", line, record["title"] + record["body"])

        SHAPE = Shape((("title", "body"),), (), parse)
    """,
}
MISSING = "of my-hbpack 1.0, which is not installed here; install that package"


def install(folder: Path, version: str = "1.0", name: str = "my-hbpack", points: dict | None = None) -> Path:
    """A package as pip leaves it, with the code of docs/extending.md."""
    for block in read_blocks("docs/extending.md"):
        if block.file.endswith(".py"):
            source = block.source.replace("njit(cache=True)", "njit")
            (folder / Path(block.file).name).write_text(source, encoding="utf-8")
    for module, source in MODULES.items():
        lines = source.strip("\n").splitlines()
        margin = len(lines[0]) - len(lines[0].lstrip())
        (folder / f"{module}.py").write_text("\n".join(line[margin:] for line in lines), encoding="utf-8")
    facts = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    groups = (points or POINTS).items()
    lines = [f"[hbpack.{kind}]\n" + "".join(f"{a} = {b}\n" for a, b in names.items()) for kind, names in groups]
    (facts / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return facts


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """The folder that is on the path, with the package; what it brought is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder)
    monkeypatch.syspath_prepend(folder)
    known = set(sys.modules)
    yield folder
    forget()
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


def forget() -> None:
    """As in a new process."""
    from packer_cli.corpus.records import SHAPES
    from packer_cli.export.formats import OTHERS
    from packer_cli.loader.formats import FORMATS
    from packer_cli.plan.packing import REGISTRY
    from packer_cli.plan.strategies.registry import STRATEGIES

    for registry in (SHAPES, OTHERS, FORMATS, REGISTRY, STRATEGIES):
        registry._others.clear()


def in_process(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run([*HBPACK, *map(str, words)], env=env, capture_output=True, text=True)


def pack(repo: Path, out: Path, *options: object) -> None:
    done = run(main, *pack_words(repo, "chats.jsonl"), "--workers", 1, "--output", out, *options)
    assert done.code == 0, done.stderr


def test_a_packing_and_a_strategy_from_pack_to_rebalance(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out, "--packing", "two-ends", "--strategy", "rising")
    plan = json.loads((out / "hbpack.json").read_text())["config"]["plan"]
    assert plan["packages"] == {"strategy": "my-hbpack 1.0", "packing": "my-hbpack 1.0"}
    assert run(main, "verify", out).code == 0
    assert run(main, "rebalance", out, "--gpus", 4, "--from-step", 3).code == 0
    assert run(main, "verify", out).code == 0
    done = run(main, "compare", out, "--groups", "1k,8k:4", "--gpus", 4, "--strategies", "balanced,rising", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["name"], row["error"]) for row in rows] == [("balanced", None), ("rising", None)]
    pack(repo, out, "--packing", "two-ends", "--strategy", "rising")
    again = run(
        main, *pack_words(repo, "chats.jsonl"), "--packing", "two-ends", "--strategy", "rising", "--output", out
    )
    assert "the plan is up to date" in again.stderr


def test_a_set_outlives_the_package_but_cannot_be_planned_again(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out, "--packing", "two-ends", "--strategy", "rising")
    (package / "my_hbpack-1.0.dist-info").rename(tmp_path / "gone")
    forget()
    for words in (("rebalance", out, "--gpus", 4), ("append", out, repo / "examples/sample/journals.jsonl")):
        done = run(main, *words)
        assert done.code == 2, words
        assert f", by which this was planned, is {MISSING}" in done.stderr
    for words in (("verify", out), ("export", out, "--to", "trl", "--output", tmp_path / "TRL"), ("show", out)):
        assert run(main, *words).code == 0, words
    assert len(PackedDataset(out, rank=0, world_size=8)[0]["input_ids"])


def test_another_version_of_the_package_makes_another_plan(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out, "--strategy", "rising")
    before = json.loads((out / "hbpack.json").read_text())["fingerprint"]
    (package / "my_hbpack-1.0.dist-info").rename(tmp_path / "gone")
    install(package, "1.1")
    forget()
    pack(repo, out, "--strategy", "rising")
    manifest = json.loads((out / "hbpack.json").read_text())
    assert manifest["config"]["plan"]["packages"] == {"strategy": "my-hbpack 1.1"}
    assert manifest["fingerprint"] != before


def test_workers_of_another_process_find_a_record_schema(package, tmp_path, repo):
    data = tmp_path / "reports.jsonl"
    records = [{"title": f"Report {i}. ", "body": "All is well. " * (i % 7 + 1)} for i in range(40)]
    records[5]["body"] = None
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ["pack", data, *pack_words(repo, "chats.jsonl")[2:], "--workers", 2, "--output", tmp_path / "OUT"]
    refused = in_process(package, *words)
    assert refused.returncode == 1
    assert "no known record shape" in (tmp_path / "OUT" / "rejected.jsonl").read_text()
    done = in_process(package, *words, "--schema", "report")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "OUT" / "hbpack.json").read_text())
    assert (manifest["counts"]["samples"], manifest["counts"]["rejected"]) == (39, 1)
    assert manifest["library_versions"]["my-hbpack"] == "1.0"
    (rejected,) = (tmp_path / "OUT" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected)["line"] == 6
    assert json.loads(rejected)["reason"].startswith("schema report: TypeError: ")


def test_an_export_and_a_loader_format(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out)
    exported = in_process(package, "export", out, "--to", "lengths", "--groups", "1k", "--output", tmp_path / "TEXT")
    assert exported.returncode == 0, exported.stderr
    lengths = (tmp_path / "TEXT" / "lengths.txt").read_text().split()
    assert len(lengths) == json.loads((out / "hbpack.json").read_text())["groups"][0]["num_packs"]
    assert "my-hbpack 1.0" in "".join(each.read_text() for each in (tmp_path / "TEXT").glob(".*") if each.is_file())
    assert PackedDataset(out, rank=0, world_size=8, format="plain")[0].keys() == {"pack"}


def test_a_broken_package_harms_only_who_names_it(package, tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([60, 50, 50, 40, 30, 70] * 10))
    words = ("stats", tmp_path / "lengths.npy", "--groups", "100", "--gpus", 2)
    assert run(main, *words).code == 0
    assert run(main, "compare", *words[1:], "--strategies", "all").code == 0
    for name, why in (
        ("broken", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("wrong", "TypeError: "),
    ):
        done = run(main, *words, "--strategy", name)
        assert done.code == 2
        assert f"strategy {name!r} of my-hbpack 1.0 cannot be loaded: {why}" in done.stderr
    done = run(main, *words, "--strategy", "risign")
    assert done.code == 2
    assert "unknown strategy 'risign' (did you mean 'rising'?); known: balanced, " in done.stderr


def test_the_doctor_knows_them(package):
    checks = {each["name"]: each for each in json.loads(run(main, "doctor", "--json").stdout)["checks"]}
    assert checks["packing two-ends"]["value"] == "of my-hbpack 1.0"
    assert {checks[f"{kind} {name}"]["state"] for kind, name in (("export", "lengths"), ("schema", "report"))} == {
        "ok"
    }
    assert checks["strategy broken"]["state"] == "note"
    assert checks["strategy broken"]["remedy"] == "mend or uninstall that package, or choose another"


def test_two_packages_may_not_bring_the_same_name(package):
    install(package, name="theirs", points={"packings": {"two-ends": "two_ends:two_ends"}})
    with pytest.raises(
        ConfigError, match=r"'two-ends' is of my-hbpack 1\.0 and of theirs 1\.0; uninstall one of them"
    ):
        hbpack.plan([5], groups="10:1", gpus=1, packing="two-ends")


def test_names_of_hbpack_are_its_own(package):
    install(package, name="theirs", points={"packings": {"bfd": "broken:x"}})
    assert hbpack.plan([5], groups="10:1", gpus=1, packing="bfd").config.packages is None


class Longest(GroupStrategy):
    """The longest group alone."""

    name = "longest-only"
    summary = short = "the longest group alone"

    def groups(self, given):
        return (given[-1],)


def one_each(lengths, capacity, seed):
    """One sample a pack."""
    return np.arange(len(lengths) + 1), np.arange(len(lengths))


LENGTHS = [60, 50, 50, 40, 30, 70] * 10


def test_objects_are_planned_and_compared_but_not_written(repo, tmp_path):
    plan = hbpack.plan(LENGTHS, groups="100:1", gpus=2, packing=one_each, strategy=Longest)
    assert len(plan.arrays.packs) == len(LENGTHS)
    assert plan.config.packages == {"strategy": OBJECT, "packing": OBJECT}
    found = hbpack.compare(LENGTHS, groups="50:1,100:1", gpus=2, strategies=["balanced", Longest(), "padded"])
    assert [(row.spec.name, row.error) for row in found.rows] == [
        ("balanced", None), ("longest-only", None), ("padded", None)
    ]  # fmt: skip
    assert [str(group) for group in found.rows[1].spec.config.groups] == ["100:1"]
    packings = hbpack.compare(LENGTHS, groups="100:1", gpus=2, algorithms=["bfd", one_each, "/none"])
    assert [row.figures.metrics.overall.num_packs for row in packings.rows][:2] == [30, 60]
    sample = repo / "examples" / "sample"
    with pytest.raises(ConfigError, match="strategy 'longest-only' is an object of this process"):
        hbpack.pack(
            sample / "chats.jsonl", output=tmp_path / "OUT", tokenizer=sample / "tokenizer", groups="8k:1", gpus=1,
            strategy=Longest,
        )  # fmt: skip
    forget()


@pytest.mark.parametrize(
    ("offsets", "order", "why"),
    [
        ([0, 1, 3], [0, 1, 1], "sample 1 is in 2 packs, not in one"),
        ([0, 3], [0, 1, 2], "its pack 0 has 12 tokens, and the capacity is 10"),
        ([0, 0, 3], [0, 1, 2], "its pack 0 is empty"),
        ([0, 2], [0, 1, 2], "its offsets must go from 0 to 3, the number of samples"),
        ([0, 2], [0, 1], "it packs 2 samples of 3"),
        ([0, 1, 3], [0, 1, 3], "its order must number samples from 0 to 2"),
        ([0.0, 3.0], [0, 1, 2], "its offsets must be one row of integers in numpy, got float64[2]"),
    ],
)
def test_wrong_packs_are_found(offsets, order, why):
    def wrong(lengths, capacity, seed):
        return np.array(offsets), np.array(order)

    with pytest.raises(hbpack.HbpackError) as error:
        hbpack.plan([4, 4, 4], groups="10:1", gpus=1, packing=wrong)
    assert str(error.value) == f"packing 'wrong' broke the rules of a packing: {why}"
    with pytest.raises(AssertionError):
        check_packing(wrong)
    forget()


def one_each_named(name):
    def packing(lengths, capacity, seed):
        return one_each(lengths, capacity, seed)

    packing.__name__ = name
    return packing


def test_what_is_no_packing_is_refused():
    for thing, why in ((5, "--packing must be text, got 5"), (lambda: 1, "'<lambda>' is no name of a packing")):
        with pytest.raises(ConfigError, match=why):
            hbpack.plan([5], groups="10:1", gpus=1, packing=thing)
    with pytest.raises(ConfigError, match="strategy 'one-each' cannot be used: it must be a Strategy, not function"):
        hbpack.plan([5], groups="10:1", gpus=1, strategy=one_each)
    with pytest.raises(ConfigError, match="packing algorithm 'bfd' is hbpack's own; give yours another name"):
        Registry("packings", "packing algorithm", {"bfd": 1}, lambda name, thing: thing).add(one_each_named("bfd"))


def test_the_checks_accept_what_the_page_brings(package):
    check_packing("two-ends")
    check_strategy("rising")


def by_chance(lengths, capacity, seed):
    order = np.random.default_rng().permutation(len(lengths))
    return np.arange(len(lengths) + 1), order


def greedy_hands(lengths, capacity, seed):
    lengths[:] = 1
    return np.arange(len(lengths) + 1), np.arange(len(lengths))


@pytest.mark.parametrize(
    ("packing", "why"), [(by_chance, "other packs the second time"), (greedy_hands, "changes the")]
)
def test_the_checks_find_a_wrong_packing(packing, why):
    with pytest.raises(AssertionError, match=why):
        check_packing(packing)


class Loses(Longest):
    name = "loses"

    def rest(self, plan, chosen, is_short, request, epoch):
        return super().rest(plan, chosen[1:], is_short[1:], request, epoch)


class Declares(Longest):
    name = "declares"
    ignores = frozenset({"fills"})


class Defaults(Longest):
    name = "defaults"
    defaults = {"overflow": "drop"}


class Changing(Longest):
    name = "changing"

    def plan(self, pieces, request):
        return super().plan(pieces, replace(request, seed=int(np.random.default_rng().integers(1000))))


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Loses, "the rest of an epoch on 1 GPUs: "),
        (Changing, "another plan the second time"),
    ],
)
def test_the_checks_find_a_wrong_strategy(strategy, why):
    with pytest.raises(AssertionError, match=why):
        check_strategy(strategy)
    forget()


class Nameless(GroupStrategy):
    pass


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Declares, "strategy 'declares' cannot be used: its ignores name 'fills', which is no plan option"),
        (Defaults, "its defaults name 'overflow', whose default is the same for all strategies"),
        (Nameless, "cannot be used: it has no 'name'"),
        (one_each, "strategy 'one-each' cannot be used: it must be a Strategy, not function"),
    ],
)
def test_a_strategy_that_declares_nonsense_is_refused(strategy, why):
    for use in (check_strategy, lambda each: hbpack.plan(LENGTHS, groups="100:1", gpus=2, strategy=each)):
        with pytest.raises(ConfigError, match=why):
            use(strategy)
    forget()


def raises(lengths, capacity, seed):
    raise KeyError("boom")


class Raises(Longest):
    name = "raises"

    def plan(self, pieces, request):
        raise KeyError("boom")


class NoPlan(Longest):
    name = "no-plan"

    def plan(self, pieces, request):
        return None


def test_errors_of_others_say_whose_they_are():
    for options, why in (
        ({"packing": raises}, "packing 'raises' failed: KeyError: 'boom'"),
        ({"strategy": Raises}, "strategy 'raises' failed: KeyError: 'boom'"),
        ({"strategy": NoPlan}, "strategy 'no-plan' failed: TypeError: its plan is a NoneType"),
    ):
        with pytest.raises(RunError) as error:
            hbpack.plan(LENGTHS, groups="100:1", gpus=2, **options)
        assert str(error.value) == why
    for check, thing in ((check_packing, raises), (check_strategy, Raises)):
        with pytest.raises(AssertionError, match="failed: KeyError: 'boom'"):
            check(thing)
    forget()


class Seeded(Longest):
    summary = short = "with a seed of its own"

    def __init__(self, seed):
        self.seed, self.name = seed, f"seeded-{seed}"

    def plan(self, pieces, request):
        return super().plan(pieces, replace(request, seed=self.seed))


def test_every_object_has_a_row_of_its_own():
    found = hbpack.compare(LENGTHS, groups="100:1", gpus=2, strategies=["balanced", Seeded(1), Seeded(2), Longest])
    assert [row.spec.name for row in found.rows] == ["balanced", "seeded-1", "seeded-2", "longest-only"]
    with pytest.raises(ConfigError, match="5 names no strategy"):
        hbpack.compare(LENGTHS, groups="100:1", gpus=2, strategies=["balanced", 5])
    forget()


def test_an_object_of_an_installed_package_is_the_packages(package):
    from rising import Rising

    assert hbpack.plan(LENGTHS, groups="100:1", gpus=2, strategy=Rising).config.packages == {
        "strategy": "my-hbpack 1.0"
    }
