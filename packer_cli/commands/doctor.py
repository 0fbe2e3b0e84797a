"""The doctor stage: whether this installation and this machine meet hbpack's needs. The stage keeps no files.

Each check is a function that returns its finding. Price: imports of the compiled libraries, and of torch if it is
installed; a few seconds.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import resource
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packer_cli.engine.local import available_memory, cpu_quota, default_workers
from packer_cli.errors import ConfigError
from packer_cli.format.records import in_json
from packer_cli.kernels import choose_cache, damaged, is_scratch
from packer_cli.plugins import Registry
from packer_cli.sizes import counted, format_bytes
from packer_cli.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Subject = Literal["versions", "machine", "extras"]
State = Literal["ok", "note", "broken"]

EXTRAS: Mapping[str, str] = {
    "torch": "reads sets in PyTorch; hbpack profile",
    "remote": "s3:// inputs and outputs",
    "ray": "--engine ray",
}
"""Purpose of each optional set of dependencies."""

_COMPILED = ("numpy", "pyarrow", "numba", "highspy", "gigatoken", "tokenizers", "orjson", "xxhash")
"""Libraries that an installation for another machine or Python breaks; `hbpack doctor` imports them."""
_LEAST_MEMORY = 2 * 2**30
_LEAST_DISK = 2**30
_LEAST_SHARED = 64 * 2**20
_LEAST_FILES = 256


@dataclass(frozen=True, kw_only=True)
class Check:
    """Finding about one thing."""

    subject: Subject
    """The part that it belongs to: `versions`, `machine` or `extras`."""
    name: str
    """Name of the thing, such as a library."""
    state: State
    """`ok`, `note` or `broken`; `note`: something is missing that most runs can do without."""
    value: str
    """The finding, for people."""
    remedy: str = ""
    """The remedy; empty if the thing is in order."""


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """Findings about everything that was checked."""

    checks: tuple[Check, ...]
    """One for each thing, in the order of the parts."""

    @property
    def broken(self) -> list[Check]:
        """Checks whose findings keep hbpack from working."""
        return [check for check in self.checks if check.state == "broken"]

    @property
    @in_json
    def healthy(self) -> bool:
        """Whether nothing is broken."""
        return not self.broken


def doctor(output: str | os.PathLike[str] = ".") -> Checkup:
    """Check this installation and machine, and say how to fix what is missing, as `hbpack doctor` does.

    Nothing is written. What is broken is no exception, but in the result.

    Args:
        output: folder whose disk to check.
    """
    return Checkup(checks=(*_versions(), *_machine(Path(output)), *_extras(), *_plugins()))


def _versions() -> Iterator[Check]:
    yield _found("versions", "hbpack", __version__)
    yield _found("versions", "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield from map(_library, _requirements(""))


def _library(wanted: Requirement) -> Check:
    install = f"run pip install '{wanted.name}{wanted.specifier}'"
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return _broken("versions", wanted.name, "not installed", install)
    if version not in wanted.specifier:
        return _broken("versions", wanted.name, f"{version}, not {wanted.specifier}", install)
    if wanted.name in _COMPILED:
        try:
            importlib.import_module(wanted.name)
        except Exception as error:  # Whatever a broken library raises.
            reason = " ".join(str(error).split())
            again = f"run pip install --force-reinstall '{wanted.name}{wanted.specifier}'"
            return _broken("versions", wanted.name, f"{version}, cannot be imported: {reason}", again)
    return _found("versions", wanted.name, version)


def _requirements(extra: str) -> list[Requirement]:
    """List the requirements of an extra for this Python, or, for an empty name, of hbpack; none without metadata."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("hbpack") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    parsed = map(Requirement, lines)
    here = [each for each in parsed if each.marker is None or each.marker.evaluate({"extra": extra})]
    if extra:
        here = [each for each in here if each.marker is not None and "extra" in str(each.marker)]
    return sorted(here, key=lambda each: each.name.lower())


def _machine(output: Path) -> Iterator[Check]:
    yield _solver()
    workers, cores, quota = default_workers(), os.cpu_count() or 1, cpu_quota()
    value = f"{workers}" if workers == cores else f"{workers} of {cores}"
    yield _found("machine", "cores", value if quota is None else f"{value}; a control group allows {quota:g}")
    memory = available_memory()
    if memory is not None:
        remedy = "plan and tokenize on a machine with more memory, or give fewer --workers"
        yield _at_least("machine", "memory", memory, _LEAST_MEMORY, remedy)
    yield _disk(output)
    if Path("/dev/shm").is_dir():
        remedy = "raise it (docker run --shm-size 1g): workers of a DataLoader pass batches through it"
        yield _at_least("machine", "/dev/shm", shutil.disk_usage("/dev/shm").free, _LEAST_SHARED, remedy)
    yield _open_files()
    yield _kernels()


def _solver() -> Check:
    """Solve a small program, as packing `ilp`, bounds and some strategies do."""
    from packer_cli.plan.packing.ilp.solver import add_variable, make_solver

    remedy = (
        "run pip install highspy; only --packing ilp, --bound lp, --strategy flexsp with --packing milp, and wlb "
        "with --packing solver need one"
    )
    try:
        import pulp

        solver = make_solver(1.0)
        problem = pulp.LpProblem("one", pulp.LpMinimize)
        number = add_variable(problem, "x", lowBound=0, upBound=9, cat="Integer")
        problem += number
        problem += number >= 3
        problem.solve(solver)
        value = number.value()
    except Exception as error:  # Whatever a broken solver raises.
        return _found("machine", "solver", " ".join(str(error).split()), remedy)
    if value != 3:
        return _found("machine", "solver", f"gives {value} for the least integer from 3 on", remedy)
    if isinstance(solver, pulp.HiGHS):
        return _found("machine", "solver", "HiGHS")
    return _found(
        "machine",
        "solver",
        f"CBC ({type(solver).__name__})",
        "run pip install highspy: HiGHS is several times as fast",
    )


def _disk(output: Path) -> Check:
    place = output.absolute()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        return _broken("machine", "disk", f"{place} cannot be written to", "name another folder, or change its owner")
    free = shutil.disk_usage(place).free
    return _at_least("machine", "disk", free, _LEAST_DISK, "make room: a set takes 4 to 6 bytes a token", " free")


def _open_files() -> Check:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return _found("machine", "open files", "no limit")
    if limit < _LEAST_FILES:
        return _broken("machine", "open files", f"{limit:,}", f"raise the limit: ulimit -n {4 * _LEAST_FILES}")
    return _found("machine", "open files", f"{limit:,}")


def _kernels() -> Check:
    """Check the folder of compiled kernels."""
    choose_cache()
    folder = os.environ.get("NUMBA_CACHE_DIR", "")
    if not folder:
        return _broken(
            "machine", "numba cache", "no folder can be written to", "name one: export NUMBA_CACHE_DIR=FOLDER"
        )
    if is_scratch(folder):
        remedy = "export NUMBA_CACHE_DIR=FOLDER: kernels are compiled in each run, which takes some seconds"
        return _found("machine", "numba cache", "only a temporary folder can be written to", remedy)
    if files := damaged(folder):
        remedy = f"run rm -r {shlex.quote(folder)}; the next run compiles the kernels again, which takes some seconds"
        return _found("machine", "numba cache", f"{counted(len(files), 'damaged file')}, such as {files[0]}", remedy)
    return _found("machine", "numba cache", folder)


def _extras() -> Iterator[Check]:
    for extra, purpose in EXTRAS.items():
        missing = [check.name for check in map(_library, _requirements(extra)) if check.state != "ok"]
        if missing:
            remedy = f"run pip install 'hbpack[{extra}]' if you need it"
            yield _found("extras", extra, f"{', '.join(missing)} missing: {purpose}", remedy)
        else:
            yield _found("extras", extra, purpose)
    yield from _gpus()


def _plugins() -> Iterator[Check]:
    """Load and check the plugins of other packages, except loader formats, since the loader needs torch."""
    from packer_cli.config import PlanConfig
    from packer_cli.config.fields import require_declared
    from packer_cli.corpus.records.shapes import SHAPES
    from packer_cli.export.formats import FORMATS
    from packer_cli.plan.packing import REGISTRY
    from packer_cli.plan.strategies.registry import STRATEGIES

    registries: Mapping[str, Registry[Any]] = {
        "packing": REGISTRY, "strategy": STRATEGIES, "export": FORMATS, "schema": SHAPES
    }  # fmt: skip
    for kind, registry in registries.items():
        for name in registry.names()[len(registry) :]:
            try:
                if registry is STRATEGIES:
                    require_declared(name, PlanConfig.model_fields)
                yield _found("extras", f"{kind} {name}", f"of {registry.package(name)}")
            except ConfigError as error:
                why, _, remedy = str(error).rpartition("; ")
                yield _found("extras", f"{kind} {name}", why or remedy, remedy)
        for name in registry.ignored():
            yield _found("extras", f"{kind} {name}", "of another package, is never used", "the name is hbpack's own")


def _gpus() -> Iterator[Check]:
    try:
        import torch
    except Exception:  # It is missing, or broken: the extra says so.
        return
    num_gpus = torch.cuda.device_count()
    if not num_gpus:
        yield _found("machine", "GPUs", f"none seen by torch {torch.__version__}; only hbpack profile needs one")
        return
    about = torch.cuda.get_device_properties(0)
    yield _found("machine", "GPUs", f"{num_gpus} x {about.name}, {format_bytes(about.total_memory)}")


def _found(subject: Subject, name: str, value: str, remedy: str = "") -> Check:
    return Check(subject=subject, name=name, state="note" if remedy else "ok", value=value, remedy=remedy)


def _broken(subject: Subject, name: str, value: str, remedy: str) -> Check:
    return Check(subject=subject, name=name, state="broken", value=value, remedy=remedy)


def _at_least(subject: Subject, name: str, num_bytes: int, least: int, remedy: str, what: str = "") -> Check:
    if num_bytes < least:
        return _found(subject, name, f"{format_bytes(num_bytes)}{what}, which is little", remedy)
    return _found(subject, name, f"{format_bytes(num_bytes)}{what}")
