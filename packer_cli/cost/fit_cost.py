"""Fits a `CostModel` to measured iterations: finds the coefficients that the rows determine, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.analytic import Assumptions
from packer_cli.cost.predict import CostModel
from packer_cli.cost.profile import Fit, IterationRow, Profile
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout

Floats = NDArray[np.float64]


def solve_nonnegative(features: Floats, values: Floats) -> Floats:
    """Solve for the x >= 0 with the least `|features @ x - values|`.

    Args:
        features: float64 [n, k]; columns may have any scale, and may be linearly dependent.
        values: float64 [n].

    Returns:
        float64 [k].

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), section 23.3. Price: about k solutions of k
    unknowns.
    """
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1.0
    matrix = features / scale
    num = matrix.shape[1]
    x = np.zeros(num)
    free = np.zeros(num, dtype=bool)
    tolerance = 1e-12 * max(1.0, float(np.linalg.norm(values)))
    for _ in range(10 * num):
        gradient = matrix.T @ (values - matrix @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if free.all() or gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            trial = np.zeros(num)
            trial[free] = np.linalg.lstsq(matrix[:, free], values, rcond=None)[0]
            negative = free & (trial < 0)
            if not negative.any():
                break
            step = np.min(x[negative] / (x[negative] - trial[negative]))
            x += step * (trial - x)
            # Variables that reached 0 leave the free set, whatever the rounding.
            gone = negative & (x <= 1e-15)
            gone |= negative & (x == x[negative].min())
            free[gone] = False
            x[~free] = 0.0
        x = trial
    return np.asarray(x / scale)


def standard_errors(jacobian: Floats, residuals: Floats) -> Floats:
    """Return the standard errors of a least-squares fit's coefficients; infinite for those that rows do not determine.

    Args:
        jacobian: float64 [n, k], derivatives of the residuals.
        residuals: float64 [n].

    Returns:
        float64 [k]; all infinite if there are no more rows than coefficients.

    Source: the usual `s^2 (J^T J)^-1`. Price: one singular value decomposition.
    """
    num_rows, num = jacobian.shape
    if num_rows <= num:
        return np.full(num, np.inf)
    scale = np.linalg.norm(jacobian, axis=0)
    scale[scale == 0] = 1.0
    _, singular, directions = np.linalg.svd(jacobian / scale, full_matrices=False)
    determined = singular > 1e-9 * singular[0]
    variance = float(residuals @ residuals) / (num_rows - num)
    inverse = np.divide(1.0, singular, out=np.zeros_like(singular), where=determined)
    errors: Floats = np.sqrt(variance * ((directions.T * inverse) ** 2).sum(axis=1)) / scale
    undetermined = (np.abs(directions[~determined]) > 1e-6).any(axis=0)
    errors[undetermined] = np.inf
    return errors


RECOMPUTE = CostModel.recompute
RESEND = CostModel.resend

LEAST_INDEPENDENT = 1e-3
"""A coefficient is fitted if more than this share of its column is independent of the other columns."""


M = TypeVar("M")


@dataclass(frozen=True)
class Fitted(Generic[M]):
    """A model of cost or memory, fitted to measured rows."""

    model: M
    fit: Fit
    notes: tuple[str, ...]
    """Coefficients that the rows cannot determine, with the values assumed instead."""


def fit_cost(profile: Profile, shape: ModelShape | None) -> Fitted[CostModel]:
    """Fit by non-negative least squares on relative errors of all rows that ran; `send` has the measured SP degrees.

    `recompute` is a factor in the model, so it is searched from 0 to 1, and the others are solved for each value.
    `resend` is not fitted: a repeated forward pass sends as much as the first, half of forward and backward together.

    Args:
        shape: if known, its FLOPs give the ratio of quadratic to linear cost that one kind of rows cannot determine.

    Raises:
        ConfigError: no row ran, or the rows cannot separate quadratic from linear cost.

    Price: about 60 least-squares solutions with one unknown per coefficient.
    """
    rows = [row for row in profile.iterations if row.seconds is not None and not row.out_of_memory]
    num_layers = profile.num_layers
    if not rows:
        raise ConfigError(
            "the profile has no iteration that ran: measure shorter lengths with hbpack profile, or give it more "
            "--memory"
        )
    system = _System(rows, num_layers, profile.num_measured or profile.num_gpus)
    notes: list[str] = []
    names, ratio = _choose(system, shape, notes)
    linear = [name for name in names if name != "recompute"]
    recompute = system.best_recompute(linear, ratio) if "recompute" in names else RECOMPUTE
    values = {"constant": 0.0, "send_constant": 0.0, "recompute": recompute}
    values |= system.solve(linear, recompute, ratio)
    model = CostModel(
        quadratic=values["quadratic"],
        linear=values["linear"],
        constant=values["constant"],
        num_layers=num_layers,
        recompute=recompute,
        send={degree: values[f"send.{degree}"] for degree in system.degrees},
        send_constant=values["send_constant"],
    )
    fitted = sorted(names, key=lambda name: name == "recompute")  # That comes last.
    residuals = system.predict(model) / system.seconds - 1
    fit = fit_of(values, fitted, system.columns(fitted, values, ratio), residuals)
    return Fitted(model, fit, tuple(notes))


def fit_of(coefficients: dict[str, float], fitted: Iterable[str], jacobian: Floats, residuals: Floats) -> Fit:
    """Make the record of a fit; `jacobian` and `residuals` as of `standard_errors`, of the coefficients `fitted`."""
    errors = zip(fitted, standard_errors(jacobian, residuals).tolist(), strict=True)
    return Fit(
        coefficients=coefficients,
        errors={name: error for name, error in errors if np.isfinite(error)},
        mean_error=float(np.abs(residuals).mean()),
    )


def _choose(system: _System, shape: ModelShape | None, notes: list[str]) -> tuple[list[str], float | None]:
    """Choose coefficients that the rows determine, and quadratic / linear as assumed if rows cannot separate them."""
    names = ["linear"]
    ratio = None
    if system.determines(names, "quadratic", None):
        names.append("quadratic")
    elif shape is None:
        raise ConfigError(
            "the profile cannot tell the square of the length from the length: measure at least two lengths, or "
            "rows of several samples beside rows of one"
        )
    else:
        ratio = flops_ratio(shape)
        notes.append("attention's share of the time is not measured (one length only): taken from the FLOPs")
    names += [f"send.{degree}" for degree in system.degrees]
    remarks = {
        "recompute": f"what checkpointing costs is not measured: assumed to be {RECOMPUTE:.3f} of the computing time",
        "constant": "the constant of a micro-batch is not measured: assumed to be 0",
        "send_constant": "the constant of the communication is not measured: assumed to be 0",
    }
    for name, remark in remarks.items():
        if name == "send_constant" and not system.degrees:
            continue
        if system.determines(names, name, ratio):
            names.append(name)
        else:
            notes.append(remark)
    return names, ratio


def flops_ratio(shape: ModelShape) -> float:
    """Return `quadratic / linear` from FLOPs and the assumed efficiencies; independent of the GPU's peak."""
    assumed = Assumptions()
    quadratic = shape.num_layers * (shape.query_size + shape.value_size) / assumed.attention_efficiency
    linear = 2 * (shape.num_layers * shape.layer_parameters[1] + shape.vocabulary_size * shape.hidden_size)
    return quadratic / (linear / assumed.gemm_efficiency)


class _System:
    """The rows as linear equations, each divided by its seconds, so that errors are relative."""

    def __init__(self, rows: Sequence[IterationRow], num_layers: int, num_gpus: int) -> None:
        self.length = np.array([row.length for row in rows], dtype=np.float64)
        self.work = np.array([row.work or row.length**2 for row in rows], dtype=np.float64)
        self.sp_size = np.array([row.sp_size for row in rows], dtype=np.float64)
        self.share = np.array([row.checkpoint_layers / num_layers for row in rows])
        tokens = np.array([row.tokens for row in rows], dtype=np.float64)
        # A row may hold several micro-batches per rank, so that settings compare at the same number of tokens.
        num_micro_batches = tokens * self.sp_size / (num_gpus * self.length)
        self.seconds = np.array([row.seconds for row in rows]) / num_micro_batches
        self.degrees = sorted({row.sp_size for row in rows} - {1})

    def columns(self, names: Sequence[str], values: Mapping[str, float], ratio: float | None) -> Floats:
        """Return derivatives of the relative prediction by the coefficients `names`, float64 [n, k].

        Args:
            values: of `recompute`; and if that is one of the names, of `quadratic` and `linear`.
            ratio: `quadratic / linear`, if the two are one coefficient, `linear`.
        """
        again = (1 + values["recompute"] * self.share) / self.sp_size
        work = self.work * again
        columns: dict[str, Floats] = {
            "quadratic": work,
            "linear": self.length * again + (0.0 if ratio is None else ratio * work),
            "constant": np.ones_like(self.length),
            "send_constant": (self.sp_size > 1).astype(np.float64),
        }
        for degree in self.degrees:
            columns[f"send.{degree}"] = (self.sp_size == degree) * self.length * (1 + RESEND * self.share)
        if "recompute" in names:
            computing = values["quadratic"] * self.work + values["linear"] * self.length
            columns["recompute"] = computing * self.share / self.sp_size
        return np.column_stack([columns[name] for name in names]) / self.seconds[:, None]

    def solve(self, names: Sequence[str], recompute: float, ratio: float | None) -> dict[str, float]:
        """Solve for the coefficients that predict best, and `quadratic` if it follows from `linear`."""
        matrix = self.columns(names, {"recompute": recompute}, ratio)
        solution = solve_nonnegative(matrix, np.ones(len(matrix)))
        values = dict(zip(names, map(float, solution), strict=True))
        return values if ratio is None else values | {"quadratic": values["linear"] * ratio}

    def best_recompute(self, names: Sequence[str], ratio: float | None) -> float:
        """Search a grid, then refine its best point by golden section."""

        def error(recompute: float) -> float:
            matrix = self.columns(names, {"recompute": recompute}, ratio)
            return float(np.linalg.norm(matrix @ solve_nonnegative(matrix, np.ones(len(matrix))) - 1))

        grid = np.linspace(0, 1, 21)
        best = float(grid[int(np.argmin([error(each) for each in grid]))])
        low, high = max(0.0, best - 0.05), min(1.0, best + 0.05)
        golden = (np.sqrt(5) - 1) / 2
        while high - low > 1e-6:
            left, right = high - golden * (high - low), low + golden * (high - low)
            low, high = (low, right) if error(left) <= error(right) else (left, high)
        return (low + high) / 2

    def determines(self, names: Sequence[str], name: str, ratio: float | None) -> bool:
        """Whether the rows can separate the coefficient `name` from those of `names`."""
        values = {"recompute": RECOMPUTE}
        if "recompute" in (*names, name):
            # A rough model is enough for the derivative by `recompute`.
            values |= self.solve([each for each in names if each != "recompute"], RECOMPUTE, ratio)
        matrix = self.columns([*names, name], values, ratio)
        norms = np.linalg.norm(matrix, axis=0)
        if not norms[-1]:
            return False
        others, last = matrix[:, :-1] / np.where(norms[:-1] > 0, norms[:-1], 1), matrix[:, -1] / norms[-1]
        rest = last - others @ np.linalg.lstsq(others, last, rcond=None)[0]
        return len(self.seconds) > matrix.shape[1] - 1 and float(np.linalg.norm(rest)) > LEAST_INDEPENDENT

    def predict(self, model: CostModel) -> Floats:
        """Predict the seconds of each row's micro-batch."""
        layers = np.rint(self.share * model.num_layers).astype(int)
        rows = zip(self.work, self.length, self.sp_size.astype(int), layers, strict=True)
        return np.array([float(model.seconds(work, tokens, Layout(sp=sp), ckpt)) for work, tokens, sp, ckpt in rows])
