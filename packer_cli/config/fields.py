"""What the models of all stages are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from packer_cli.sizes import parse_bytes, parse_tokens

_read_tokens = BeforeValidator(
    lambda value: parse_tokens(value) if isinstance(value, str) else value, json_schema_input_type=int | str
)
_read_bytes = BeforeValidator(
    lambda value: parse_bytes(value) if isinstance(value, str) else value, json_schema_input_type=int | str
)
PackTokens = Annotated[int, Field(ge=1, lt=2**31), _read_tokens]
StepTokens = Annotated[int, Field(ge=1, le=2**62), _read_tokens]
Bytes = Annotated[int, Field(ge=2**16, le=2**62), _read_bytes]


class Model(BaseModel):
    """Options: none may change, and none is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)


def or_another(own: Iterable[str]) -> WithJsonSchema:
    """The schema of a name: one of hbpack's own, or one that another package brings."""
    return WithJsonSchema({"anyOf": [{"enum": list(own)}, {"type": "string"}]})
