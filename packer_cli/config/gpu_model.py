"""The GPU model that the options `--model --gpu` or `--profile` name, read from a `config.json` or a profile."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from packer_cli.config.fields import GpuConfig
from packer_cli.config.plan_record import RecordedModel
from packer_cli.cost.analytic import NOT_MEASURED, Assumptions, analytic_model, parse_assumptions, parse_gpu
from packer_cli.cost.fit_profile import measured_model
from packer_cli.cost.predict import GpuModel
from packer_cli.cost.profile import Profile
from packer_cli.cost.shape import ModelShape, shape_of
from packer_cli.errors import ConfigError, InputError
from packer_cli.remote.system import is_url

if TYPE_CHECKING:
    from packer_cli.config.plan_options import PlanConfig

PREDICTION = "a prediction of time"
"""The need for a model, in messages."""
_GIVE_CONFIG = "give a model's config.json (Hugging Face), or the folder that holds it"


def load_gpu_model(
    config: GpuConfig, num_gpus: int, what: str, lockstep: str = "all", *, for_memory: bool = False
) -> GpuModel:
    """Load the model that the options name.

    Args:
        num_gpus: GPUs that train.
        what: as in `GpuConfig.require_gpu_model`.
        lockstep: as in `PlanConfig`; a number above 1 shares the weights, and `1` is as `all`, see `of_lockstep`.
        for_memory: whether the memory is needed, too.

    Raises:
        ConfigError: options are missing or contradict each other, the GPU is unknown, or the weights do not fit; or
            the profile leaves more memory than these GPUs have, as more GPUs shared the weights.
        InputError: a file is missing, or is not a model config or profile.
    """
    config.require_gpu_model(what)
    shard_gpus = None if lockstep in ("all", "1") else int(lockstep)
    if config.profile is not None:
        profile = read_profile(config.profile, config.assume)
        if for_memory and profile.num_gpus > num_gpus:
            raise ConfigError(
                f"{config.profile!r} is of a model whose weights {profile.num_gpus} GPUs share, so on {num_gpus} "
                f"there is less memory left than it says; profile with --gpus {num_gpus}, or plan for "
                f"{profile.num_gpus}"
            )
        if shard_gpus:
            raise ConfigError(f"--lockstep {lockstep}: a profile does not say what fewer GPUs gather; use --model")
        return measured_model(profile)
    assert config.model is not None
    assert config.gpu is not None
    assumed: dict[str, Any] = parse_assumptions(config.assume)
    shape, gpu = read_shape(config.model), parse_gpu(config.gpu)
    return analytic_model(shape, gpu, num_gpus, Assumptions(**assumed), shard_gpus)


def load_models(config: PlanConfig, what: str) -> tuple[GpuModel | None, Profile | None]:
    """Load the GPU model that the options name, and the profile it was fitted to, like `load_gpu_model`.

    The model is None if the profile has too few rows to fit one but enough for HBP's algorithm 1.
    """
    config.require_gpu_model(what)
    profile = None if config.profile is None else read_profile(config.profile, config.assume)
    try:
        return load_gpu_model(config, config.gpus, what, config.lockstep, for_memory=True), profile
    except ConfigError:
        algorithm = config.used_algorithm
        if profile is None or profile.num_gpus > config.gpus or algorithm != "hbp":
            raise
        return None, profile


def model_values(model: GpuModel) -> RecordedModel:
    """Convert a model to JSON without its `origin`; numbers keep the ten digits that are the same on every machine.

    `simulate.steps` reads the values.
    """
    values = {name: value for name, value in asdict(model).items() if name != "origin" and value is not None}
    found: RecordedModel = json.loads(json.dumps(values), parse_float=lambda text: float(f"{float(text):.10g}"))
    return found


def read_shape(path: str | Path) -> ModelShape:
    """Read a model's shape.

    Args:
        path: `config.json`, or the folder that holds it.

    Raises:
        InputError: the file does not exist or is not a JSON object, or a key is missing or has the wrong type; the
            message names it.
    """
    config = _read_config(path)
    try:
        return shape_of(config)
    except ValueError as error:
        raise InputError(f"{str(_config_file(path))!r}: {error}; correct it, or give another model") from None


def most_positions(path: str | Path) -> int | None:
    """Read the positions that a model was made for, with those that its scaling of RoPE adds; None if it does not say.

    Raises the errors of `read_shape` for a file that cannot be read.
    """
    config = _read_config(path)
    config = {**config, **(config.get("text_config") or {})}
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaled = (rope.get("original_max_position_embeddings") or 0) * (rope.get("factor") or 0)
    return max(int(config.get("max_position_embeddings") or 0), int(scaled)) or None


def _config_file(path: str | Path) -> Path:
    return Path(path) / "config.json" if Path(path).is_dir() else Path(path)


def _read_config(path: str | Path) -> dict[str, Any]:
    """Read the JSON object of a model's config; see `read_shape`."""
    if is_url(str(path)):
        raise InputError(f"{path}: hbpack reads local files; download it first")
    file = _config_file(path)
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise InputError(f"{str(file)!r}: {error.strerror}; {_GIVE_CONFIG}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(file)!r} is not JSON: {' '.join(str(error).split())}; {_GIVE_CONFIG}") from None
    if not isinstance(config, dict):
        raise InputError(f"{str(file)!r} is not a JSON object; {_GIVE_CONFIG}")
    return config


def read_profile(path: str | Path, assume: str | None = None) -> Profile:
    """Read and validate a profile.

    Args:
        assume: values in place of the profile's own, see `GpuConfig`.

    Raises:
        ConfigError: `assume` names a value that was measured.
        InputError: the file does not exist or is not a profile; the message names the first wrong field.
    """
    file = Path(path)
    try:
        profile = Profile.model_validate_json(file.read_bytes())
        given = parse_assumptions(assume, NOT_MEASURED)
        return profile.model_copy(update={"assumed": {**profile.assumed, **given}}) if given else profile
    except OSError as error:
        raise InputError(f"{str(file)!r}: {error.strerror}; make a profile with hbpack profile") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{str(file)!r} is not a profile: {place or 'the file'}: {first['msg']}; make one with hbpack profile"
        ) from None
