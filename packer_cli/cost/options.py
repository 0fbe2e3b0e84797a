"""Loads the GPU model that the options `--model --gpu` or `--profile` name."""

from __future__ import annotations

from pathlib import Path

from packer_cli.cost.models import GpuModel
from packer_cli.errors import ConfigError

GIVE = "--model CONFIG.JSON --gpu NAME (such as h100), or --profile FILE of hbpack profile"
"""The options that predictions need; for messages."""


def has_gpu_model(model: str | None, gpu: str | None, profile: str | None) -> bool:
    """Whether any of the options was given."""
    return any(value is not None for value in (model, gpu, profile))


def load_gpu_model(model: str | None, gpu: str | None, profile: str | None, num_gpus: int, *, what: str) -> GpuModel:
    """The model that the options name.

    Args:
        num_gpus: GPUs that train and share the weights.
        what: the option or command that needs the model, such as `--groups auto`; for messages.

    Raises:
        ConfigError: options are missing or contradict each other, the GPU is unknown, or the weights do not fit.
        InputError: a file is missing, or is not a model config or profile.
    """
    refuse_partial_options(model, gpu, profile, what)
    if profile is not None:
        from packer_cli.cost.measured import measured_model
        from packer_cli.cost.profile_file import read_profile

        return measured_model(read_profile(Path(profile)))
    assert model is not None
    assert gpu is not None
    from packer_cli.cost.analytic import analytic_model
    from packer_cli.cost.gpus import parse_gpu
    from packer_cli.cost.model_config import read_shape

    return analytic_model(read_shape(model), parse_gpu(gpu), num_gpus)


def refuse_partial_options(model: str | None, gpu: str | None, profile: str | None, what: str) -> None:
    """Raise ConfigError unless the options name exactly one model."""
    if profile is not None and (model is not None or gpu is not None):
        raise ConfigError(f"--profile stands in place of --model and --gpu; {what} takes one or the other")
    if profile is None and (model is None or gpu is None):
        missing = "" if model is gpu is None else f"; {'--model' if model is None else '--gpu'} is missing"
        raise ConfigError(f"{what} needs {GIVE}{missing}")
