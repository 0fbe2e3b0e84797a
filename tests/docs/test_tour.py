"""The notebook runs, and shows tables."""

from __future__ import annotations

import shutil

import nbclient
import nbformat
import pytest


@pytest.mark.slow
def test_the_tour(repo, tmp_path):
    notebook = nbformat.read(repo / "examples" / "tour.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit"
    shutil.copytree(repo / "examples" / "sample", tmp_path / "examples" / "sample")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [
        output for output in outputs if output.output_type in ("error", "stream") and output.get("name") != "stdout"
    ]
    shown = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert sum("baseline: ISF at the longest length" in text for text in shown) == 2
    assert any("isf/none@longest" in text for text in shown)
    assert sum("application/vnd.vegalite.v5+json" in output.get("data", {}) for output in outputs) == 1
