"""The rules of the house: who may import whom, what is pure, who prints. Each check is shown a violation, too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import packer_cli
from packer_cli.cli.main import COMMANDS
from packer_cli.export.formats import OWN as EXPORTS
from packer_cli.format import constants as format_constants
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import STRATEGIES
from scripts.build_dists import PARTS
from tests.house import (
    Graph,
    against_order,
    asking_which,
    circles,
    circles_of_neighbours,
    constants,
    defining,
    defining_packages,
    import_graph,
    impure,
    printing,
    read_modules,
    room_graph,
    untyped_borders,
)
from tests.reached import definitions, unreached

PACKAGE = "packer_cli"

ORDER = [
    ["errors", "kernels", "lazy", "panels", "signals", "sizes", "startup", "version"],
    ["jit", "plugins", "remote"],
    ["format"],
    ["files", "cost", "corpus"],
    ["folder_lock"],
    ["engine", "plan", "loader"],
    ["strategy"],
    ["config"],
    ["tokens", "simulate"],
    ["groups", "shards"],
    ["compare"],
    ["tables"],
    ["export", "init", "show", "verify", "report"],
    ["measure"],
    ["commands"],
    ["testing"],
    ["cli"],
    ["__init__", "__main__"],
]
"""The rooms from the ground up: each sees what is in the lines above its own."""

NUMERIC = {
    "numpy", "numba", "abc", "bisect", "collections", "dataclasses", "typing", "functools", "itertools", "math",
    "enum",
}  # fmt: skip
"""All that a pure room may import from outside: nothing that reads or writes. `cost` also has a typed record."""
SOLVERS = {"time", "pulp", "highspy"}
"""What only integer programs (`plan/packing/ilp`, strategies') may import besides: solvers, and a limit's clock."""
OF_THE_LOADER = {"format", "remote", "errors", "plugins", "version"}
"""Rooms that the loader sees: it trains without the preparation side; what lies on disk is the contract."""
USES_THE_LOADER = {"measure", "loader"}
"""Its package needs torch, which the preparation side does without."""


@pytest.fixture(scope="module")
def modules(repo: Path) -> dict[str, ast.Module]:
    return read_modules(repo / PACKAGE)


@pytest.fixture(scope="module")
def graph(modules: dict[str, ast.Module]) -> Graph:
    return import_graph(modules)


def room(modules: dict[str, ast.Module], name: str) -> dict[str, ast.Module]:
    prefix = f"{PACKAGE}.{name}"
    return {module: tree for module, tree in modules.items() if module == prefix or module.startswith(prefix + ".")}


def planted(**sources: str) -> dict[str, ast.Module]:
    """A package `p`; names have `__` for dots."""
    return {"p": ast.parse("")} | {f"p.{name.replace('__', '.')}": ast.parse(text) for name, text in sources.items()}


def test_the_graphs_have_no_circle(graph):
    assert circles(graph) == []
    assert circles(room_graph(graph)) == []
    assert circles_of_neighbours(graph) == []


def test_a_circle_is_found():
    for_types = "if TYPE_CHECKING:\n    from p.b.y import Y"
    graph = import_graph(planted(a__x=for_types, b__y="from p.a import z", a__z="", b__v="def f():\n    import p.a.x"))
    assert circles(graph) == []
    assert circles(room_graph(graph)) == [["a", "b"]]
    graph = import_graph(planted(a__x=for_types, b__y="from p.a.x import X"))
    assert circles(graph) == [["p.a.x", "p.b.y"]]


def test_each_room_sees_only_rooms_before_it(graph):
    assert against_order(graph, ORDER) == []
    assert {name for line in ORDER for name in line} == set(room_graph(graph))


def test_an_import_against_the_order_is_found():
    graph = import_graph(planted(plan__x="from p.shards import write", shards__write="", lost="import p.plan.x"))
    assert against_order(graph, [["__init__"], ["plan"], ["shards"]]) == ["lost -> plan", "plan -> shards"]
    graph = import_graph(planted(engine__x="PRELOAD = ['p.tokens']", tokens=""))
    assert against_order(graph, [["__init__"], ["engine"], ["tokens"]]) == ["engine -> tokens"]


PLAN = "packer_cli.plan"


def test_each_folder_of_plan_sees_those_before_it(modules):
    graph = {name.removeprefix("packer_cli."): {each.removeprefix("packer_cli.") for each in others}
             for name, others in import_graph(room(modules, "plan")).items()}  # fmt: skip
    folders = [["core"], ["kernels"], ["packing"], ["strategies"]]
    top = sorted({name.split(".")[1] for name in graph if "." in name} - {each for (each,) in folders})
    assert [
        line for line in against_order(graph, [["__init__"], *folders, top]) if line.partition(" ")[0] not in top
    ] == []


def test_strategies_do_not_import_each_other(graph):
    own = {type(strategy).__module__ for strategy in STRATEGIES.values()}
    homes = {each.removesuffix(".strategy") for each in own}
    found = [
        (home, target)
        for home in homes
        for name, targets in graph.items()
        for target in targets
        if f"{name}.".startswith(f"{home}.")
        for other in homes - {home}
        if f"{target}.".startswith(f"{other}.")
    ]
    assert found == []
    classes = [Strategy]
    for each in classes:
        classes += each.__subclasses__()
    named = {each for each in classes if each.__module__.startswith(PACKAGE) and hasattr(each, "name")}
    assert named == {type(strategy) for strategy in STRATEGIES.values()}


def test_the_loader_sees_the_formats_alone(graph):
    rooms = room_graph(graph)
    assert rooms["loader"] <= OF_THE_LOADER
    assert {name for name, others in rooms.items() if "loader" in others} <= USES_THE_LOADER


def test_hbpack_loader_holds_what_the_loader_needs(graph):
    rooms, needed = room_graph(graph), {"__init__", "lazy"}
    waiting = ["loader"]
    while waiting:
        needed.add(waiting[-1])
        waiting += rooms[waiting.pop()] - needed
    assert {name.partition(".")[0] for name in PARTS} == needed | {"py"}


def test_plan_cost_and_simulate_are_pure(modules):
    def may_import(name: str) -> set[str]:
        return (
            NUMERIC | SOLVERS
            if ".packing.ilp." in name or name.endswith((".flexsp.batches", ".wlb.packers"))
            else NUMERIC
        )

    assert impure(room(modules, "plan"), may_import) == []
    assert impure(room(modules, "cost"), lambda name: NUMERIC | {"pydantic"}) == []
    assert impure(room(modules, "simulate"), may_import) == []


def test_only_strategies_know_their_names(modules):
    outside = {name: tree for name, tree in modules.items() if ".plan.strategies" not in name}
    assert asking_which(outside, set(STRATEGIES)) == []


def test_who_asks_which_strategy_is_found():
    sources = planted(a="if config.strategy == 'x': ...", b="fill == 'x'", c="STRATEGIES['x']", d="name in ('y', 'z')")
    assert asking_which(sources, {"x", "y"}) == ["p.a", "p.c", "p.d"]


def test_what_is_impure_is_found():
    found = impure(planted(x="import json\nfrom pathlib import Path\nopen('a')\n"), lambda name: {"json"})
    assert found == ["p.x imports pathlib", "p.x calls open"]


def test_only_the_command_line_prints(modules):
    assert [name for name in printing(modules) if not name.startswith(f"{PACKAGE}.cli.")] == []


def test_who_prints_is_found():
    sources = planted(a="print(1)", b="import rich.table", c="def f():\n    click.echo('x')", d="import logging")
    assert printing(sources) == ["p.a", "p.b", "p.c"]


def test_packages_only_re_export(repo, tmp_path):
    assert defining_packages(repo / PACKAGE) == []
    for name, text in {"a": '"""Text."""\nfrom p import b\n__all__ = ["b"]\n', "c": "def f(): ...\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    assert defining_packages(tmp_path) == ["c"]


@pytest.mark.parametrize("name", sorted(name for name in vars(format_constants) if name.isupper()))
def test_a_constant_of_the_disk_format_is_defined_once(modules, name):
    assert len(constants(modules, name)) == 1
    assert constants(planted(a="X = 1", b="X = 2"), "X") == ["p.a", "p.b"]


KEPT = [
    "packer_cli.files.HashingFile.writable",  # What pyarrow asks a file of Python's.
]
"""What no command, loader or documented call uses, and stays."""


def users(repo: Path) -> dict[str, ast.Module]:
    """The code that users have: README, docs, examples, scripts."""
    files = [*(repo / "examples").glob("*.py"), *(repo / "scripts").glob("*.py")]
    code = [file.read_text(encoding="utf-8") for file in files]
    for page in (repo / "README.md", *(repo / "docs").glob("*.md")):
        code += map(dedent, re.findall("```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    return {f"user{number}": ast.parse(text) for number, text in enumerate(code)}


def called_by_users(repo: Path, modules: dict[str, ast.Module]) -> list[str]:
    """Commands, exports, what the API gives, and what the pages of loops and trainers name."""
    names = [f"{PACKAGE}.__main__", *(each.replace(":", ".") for each in EXPORTS.values())]
    names += [f"{PACKAGE}.cli.{name.replace('-', '_')}.command" for name in COMMANDS]
    names += [f"{PACKAGE}.{name}" for name in packer_cli.__all__]
    pages = ("loader", "trainers", "preferences")
    text = {name: (repo / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("from", *pages)}
    for config in re.findall("```yaml\n(.*?)```", text["from"], re.DOTALL):
        names += re.findall(rf"{PACKAGE}(?:\.\w+)+", config)
    words = set(re.findall("`([A-Za-z_]+)", "".join(text[page] for page in pages)))
    return names + [name for name in definitions(room(modules, "loader")) if name.rpartition(".")[2] in words]


def test_users_reach_every_definition(repo, modules):
    others = users(repo)
    found = unreached(modules | others, [*called_by_users(repo, modules), *KEPT, *others])
    assert [name for name in found if name.startswith(PACKAGE)] == []


def test_a_definition_that_no_user_reaches_is_found():
    sources = {
        "cli": "from p.a import used\nfrom p.c import again\nimport p.d\ndef command(): used().kept() + again()",
        "a": "ONE = TWO = 3\ndef used(): return Made(ONE)\ndef unused(): unused() + helper()\ndef helper(): ...\n"
        "class Made:\n    def kept(self): ...\n    def lost(self): ...\nclass Other:\n    def kept(self): ...",
        "b": "def thing(): ...",
        "c": "from p.b import thing as again, other\nfrom p.a import unused\n__all__ = ['again', 'unused']",
        "d": "import json\nclass Reader(json.JSONDecoder):\n    def decode(self): ...\nREADER = Reader()\nREADER.x()\n"
        "class Own(ValueError):\n    def lost(self): ...\ntry:\n    Own()\nexcept Own: ...\n"
        "class Api:\n    def call(self): ...",
    }
    found = unreached(planted(**sources), ["p.cli.command", "p.d.Api"])
    lost = ["p.a.Made.lost", "p.a.Other", "p.a.Other.kept", "p.a.TWO", "p.a.helper", "p.a.unused"]
    assert found == [*lost, "p.d.Own.lost"]


def test_no_mapping_of_unknown_keys_crosses_a_border(modules):
    assert untyped_borders(modules) == []


def test_a_mapping_of_unknown_keys_is_found():
    sources = planted(
        a="from p.b import f\nfrom p import c",
        b="Message = dict[str, Any]\ndef f(x: list[dict[str, Any]]): ...\ndef _g() -> dict[str, Any]: ...\n"
        "def h(message: Message): ...\nclass C:\n    x: dict[str, Any] | None = None\n"
        "    def y(self) -> dict[str, Any]: ...\n    def _z(self) -> dict[str, Any]: ...",
        c__d="def i() -> dict[str, Any]: ...",
        c="from p.c.d import i",
        e="def unseen() -> dict[str, Any]: ...",
    )
    assert untyped_borders(sources) == ["p.b.f", "p.b.C.x", "p.b.C.y", "p.c.d.i"]


READERS = (
    "Manifest",
    "EpochInfo",
    "LoaderState",
    "RankRow",
    "parse_manifest",
    "parse_state",
    "read_rank",
    "read_rank_rows",
    "RankRows",
)
"""What says what lies on disk, and what reads it."""


@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_the_disk_format_is_defined_once(modules, name):
    assert [module.rpartition(".")[0] for module in defining(modules, name)] == [f"{PACKAGE}.format"]
    assert defining(planted(a="class X: ...", b="def X(): ..."), "X") == ["p.a", "p.b"]


def test_the_formats_need_no_other_library(modules):
    outside = {"numpy", "pyarrow", "xxhash", *sys.stdlib_module_names}
    found = impure(room(modules, "format"), lambda name: outside)
    assert [line for line in found if " imports " in line] == []


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import packer_cli", {"torch", "numba", "numpy", "pyarrow", "click", "pydantic"}),
        ("import packer_cli.cli.main", {"torch", "numba", "numpy", "pyarrow", "pydantic", "rich", "yaml"}),
        (
            "import packer_cli.plan.build, packer_cli.plan.core.check",
            {"click", "torch", "pyarrow", "pydantic", "rich", "pulp", "highspy"},
        ),
        (
            "import packer_cli.show.view, packer_cli.show.lines",
            {"torch", "transformers", "tokenizers", "datasets", "rich"},
        ),
        ("import packer_cli.corpus.discover", {"torch", "numba", "click", "pydantic", "datasets", "transformers"}),
        ("import packer_cli.commands.pack", {"torch", "numba", "datasets", "transformers", "tokenizers", "rich"}),
        ("import packer_cli.commands.tokenize", {"torch", "numba", "datasets", "transformers", "tokenizers", "rich"}),
        ("import packer_cli.commands.write", {"torch", "numba", "datasets", "transformers", "tokenizers", "rich"}),
        ("import packer_cli.groups.auto", {"click", "torch", "pyarrow", "rich", "datasets", "transformers"}),
        ("import packer_cli.tokens.preload", {"click", "torch", "numba", "pydantic", "datasets"}),
    ],
)  # fmt: skip
def test_what_an_import_loads(statement, forbidden):
    """tests/loader/test_imports.py has what the loader loads."""
    code = f"import sys\n{statement}\nprint(sorted({forbidden!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("page", ["architecture.md", "extending.md"])
def test_the_paths_on_a_page_exist(repo, page):
    text = (repo / "docs" / page).read_text()
    paths = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:[a-z]\w*\.py)?)`", text)) - {"my_hbpack/two_ends.py"}
    assert len(paths) > 10
    roots = [repo, repo / PACKAGE, repo / PACKAGE / "plan", repo / PACKAGE / "tokens"]
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in roots)] == []
