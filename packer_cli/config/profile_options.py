"""The options of `hbpack profile`, which decide the measurements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from packer_cli.config.fields import Bytes, Model
from packer_cli.panels import Shown
from packer_cli.sizes import parse_bytes, parse_integer, parse_tokens

_shown = partial(Shown, is_common=True)


def _numbers(parse: Callable[[str], int], least: int = 1) -> BeforeValidator:
    """Make a reader of numbers with commas between them, each at least `least`, without repetitions."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        numbers = [parse(word.strip()) for word in value.split(",")]
        if min(numbers) < least:
            raise ValueError(f"numbers must be at least {least}, got {min(numbers)}")
        return tuple(dict.fromkeys(numbers))

    return BeforeValidator(read)


def _one_or_two(bandwidth: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if bandwidth is not None and len(bandwidth) > 2:
        raise ValueError("write the one within a node, then the one between nodes, such as 400GB,50GB")
    return bandwidth


class ProfileConfig(Model):
    """Measurements to make."""

    model: Annotated[str, _shown(metavar="PATH")] = Field(min_length=1)
    """The model's config.json (Hugging Face), or its folder."""
    lengths: Annotated[tuple[int, ...], _numbers(parse_tokens), _shown(metavar="TOKENS,...")] = Field(
        default="2k,4k,8k,16k,32k,64k,128k", validate_default=True
    )
    """Row lengths to measure, at least two."""
    sp: Annotated[tuple[int, ...] | None, _numbers(parse_integer), _shown(metavar="DEGREE,...")] = None
    """SP degrees to measure; by default, all that the processes of torchrun and the model's heads allow."""
    checkpoint_layers: Annotated[
        tuple[int, ...] | None,
        _numbers(parse_integer, least=0),
        BeforeValidator(lambda value: None if value == "auto" else value),  # Comes first.
        _shown(metavar="auto|LAYERS,..."),
    ] = Field(default="auto", validate_default=True)
    """Numbers of checkpointed layers; `auto` finds the fewest that fit (HBP, algorithm 4), and also measures all."""
    samples: Annotated[tuple[int, ...], _numbers(parse_integer), _shown(metavar="N,...")] = Field(
        default="1,8", validate_default=True
    )
    """Samples in a row; rows of several tell linear from quadratic cost."""
    gpus: Annotated[int | None, _shown()] = Field(default=None, ge=1, le=2**20)
    """GPUs that will train, and share the weights; by default, those that measure."""
    memory: Annotated[Bytes | None, _shown(metavar="BYTES")] = None
    """Memory of a GPU that training may take, such as 72GiB; by default, 0.9 of what it has."""
    bandwidth: Annotated[
        tuple[int, ...] | None, _numbers(parse_bytes), AfterValidator(_one_or_two), _shown(metavar="BYTES[,BYTES]")
    ] = None
    """Bytes a second that all-to-alls reach within a node and, after a comma, between nodes.

    For the SP degrees that are not measured."""
    modelling: Annotated[Literal["transformers", "plain"], _shown()] = "transformers"
    """Whose code runs: transformers', or a stack of decoder layers of the same shape in plain torch."""
    weights: Annotated[Literal["sharded", "whole"], _shown()] = "sharded"
    """Weights that each process of torchrun holds: a share (`sharded`: FSDP, ZeRO-3) or all (`whole`: DDP).

    Processes with sharded weights gather them in every micro-batch. Plans with --lockstep 1 are trained with whole
    weights."""
    attention: Annotated[Literal["auto", "flash-attn", "torch-varlen", "sdpa"], _shown()] = "auto"
    """Attention kernel; `auto` is the first that is installed; sdpa on a CPU."""
    logits: Annotated[Literal["float32", "chunked"], _shown()] = "float32"
    """`chunked` takes the loss a thousand tokens at a time, as a fused loss does; with --modelling plain."""
    dtype: Annotated[Literal["bfloat16", "float16", "float32"] | None, _shown()] = None
    """Type of weights and activations; by default, the config's."""
    device: Annotated[Literal["auto", "cuda", "cpu"], _shown()] = "auto"
    """Device to measure on; `auto` is the GPU if there is one. Times of a CPU say nothing about a GPU."""
    repeats: Annotated[int, _shown()] = Field(default=5, ge=1, le=1000)
    """Runs for each median."""
    warm_up: int = 2
    """Runs before the measured ones."""
