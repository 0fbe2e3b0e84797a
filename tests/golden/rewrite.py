"""`python -m tests.golden.rewrite`: hash every golden case anew."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.golden.cases import FILE, hashes_of_chain, make_world, plan_of_case, read_golden
from tests.golden.hashes import hash_of_plan

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder, golden = Path(name), read_golden()
        world = make_world(folder, Path(__file__).parents[2])
        golden["plans"] = {case: hash_of_plan(plan_of_case(case, world)) for case in golden["plans"]}
        golden["sets"] = {
            case: hashes_of_chain(case, world, folder / str(number)) for number, case in enumerate(golden["sets"])
        }
    FILE.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
