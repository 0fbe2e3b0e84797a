"""The JSON Schemas of what `--json` prints, by name; `schemas/output/` is generated from these."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.outputs.figures import (
    CompareOutput,
    GroupsOutput,
    PlanPrediction,
    ReportOutput,
    SetOutput,
    StatsOutput,
)
from packer_cli.cli.outputs.found import DoctorOutput, ShowOutput, StatusOutput, VerifyOutput
from packer_cli.cli.outputs.written import ExportOutput, InitOutput, RebalanceOutput, StoreOutput
from packer_cli.plan.strategies.protocol import LayoutChoice

OUTPUTS: dict[str, Any] = {
    "init": InitOutput,
    "set": SetOutput,
    "tokenize": StoreOutput,
    "rebalance": RebalanceOutput,
    "export": ExportOutput,
    "doctor": DoctorOutput,
    "stats": StatsOutput,
    "compare": CompareOutput,
    "simulate": PlanPrediction | CompareOutput,
    "report": ReportOutput,
    "groups": GroupsOutput | LayoutChoice,
    "verify": VerifyOutput,
    "status": StatusOutput,
    "show": list[ShowOutput],
}
"""The name of each schema, and what it describes."""
