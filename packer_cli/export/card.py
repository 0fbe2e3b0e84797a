"""The card of a data set on the Hugging Face Hub: what was packed, from what, and for which GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer_cli.format.manifest import Manifest
from packer_cli.sizes import counted, format_tokens

TRAIN = """\
```python
from packer_cli.loader.adapters.transformers import packed

trainer = packed(Trainer)(model, args, train_dataset="hf://datasets/{name}")
```

For other trainers, `packer_cli.loader.PackedDataset("hf://datasets/{name}", rank, {gpus})` reads it on {gpus_text}.
Name a revision, `hf://datasets/{name}@REVISION`, so that a run does not read a set that was pushed later."""

LOAD = """\
```python
from datasets import load_dataset

dataset = load_dataset("{name}", split="train")
```

The rows are packs in the format of `{format}`, in the order in which the plan uses them. Do not shuffle them, and do
not pack them again."""

DOWNLOAD = """\
```bash
hf download {name} --repo-type dataset --local-dir DIR
```

The files are in the format of `{format}`."""


def dataset_card(
    manifest: Manifest, name: str, *, license: str | None, format: str | None = None, data_files: str | None = None
) -> str:
    """The text of `README.md`: YAML for the Hub, and Markdown.

    Args:
        name: of the data set on the Hub.
        license: its SPDX identifier; None where the user named none.
        format: of an export; None: the packed set itself.
        data_files: which of the export's files `load_dataset` reads; None: it reads none.
    """
    places = {
        "name": name,
        "format": format,
        "gpus": manifest.num_gpus,
        "gpus_text": counted(manifest.num_gpus, "GPU"),
    }
    how = TRAIN if format is None else LOAD if data_files else DOWNLOAD
    lines = ["---", *_metadata(license, data_files), "---", "", f"# {name}", ""]
    what = "Packed" if format is None else f"Exported to `{format}`"
    lines += [f"{what} by hbpack {manifest.hbpack_version}.", ""]
    lines += [*how.format(**places).split("\n"), "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in _facts(manifest)]
    lines += ["", "## Sources", "", "| source | weight |", "|---|---|"]
    lines += [f"| `{source['name']}` | {source['weight']:g} |" for source in manifest.sources]
    if license is None:
        lines += ["", "No licence was named: those of the sources hold."]
    return "\n".join(lines) + "\n"


def _metadata(license: str | None, data_files: str | None) -> Iterator[str]:
    if license is not None:
        yield f"license: {license}"
    yield "tags: [hbpack]"
    if data_files is None:
        yield "viewer: false"
    else:
        yield from ("configs:", "- config_name: default", f'  data_files: "{data_files}"')


def _facts(manifest: Manifest) -> Iterator[tuple[str, Any]]:
    plan, overall = manifest.config.plan, manifest.metrics.overall
    yield "samples", f"{sum(group.num_samples for group in manifest.groups):,}"
    yield "tokens", f"{overall.num_tokens:,}"
    yield "packs", f"{sum(group.num_packs for group in manifest.groups):,}"
    yield "groups, CAPACITY:SP_DEGREE", ", ".join(f"{format_tokens(g.capacity)}:{g.sp_size}" for g in manifest.groups)
    yield "planned for", counted(manifest.num_gpus, "GPU")
    yield "recipe", f"strategy {plan['strategy']}, packing {plan['packing']}, overflow {plan['overflow']}"
    if plan.get("global_tokens"):
        yield "tokens of an optimizer step", f"{plan['global_tokens']:,}"
    yield "loss on", f"{manifest.config.tokens['loss_on']}"
    yield "seed", manifest.seed
    yield "padding ratio (PR)", f"{overall.pr:.4f}"
    yield "attention balance ratio (ABR)", f"{overall.abr:.4f}"
    tokenizer = manifest.tokenizer
    yield "tokenizer", f"`{tokenizer['name']}`, fingerprint `{tokenizer['fingerprint']}`"
    if tokenizer.get("chat_template_fingerprint"):
        yield "chat template", f"fingerprint `{tokenizer['chat_template_fingerprint']}`"
    yield "fingerprint of the set", f"`{manifest.fingerprint}`"
