"""The card of a data set on the Hugging Face Hub: what was packed, from what, and for which GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packer_cli.export.formats import load_format
from packer_cli.export.listing import ExportListing
from packer_cli.format.entries import GroupInfo
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

The rows are packs in the format of `{format}`, {order}. {rule}"""

DOWNLOAD = """\
```bash
hf download {name} --repo-type dataset --local-dir DIR
```

DIR then holds packs in the format of `{format}`, {order}."""

START = "{download} Train with:\n\n```bash\n{usage}\n```"

ORDERS = {
    "use": ("in the order in which the plan uses them", "Do not shuffle them, and do not pack them again."),
    "packs": ("in the order of the shards", "Do not pack them again."),
}


def card_of_set(manifest: Manifest, name: str, license: str | None) -> str:
    """`README.md` of a packed set: YAML for the Hub, and Markdown.

    Args:
        name: of the data set on the Hub.
        license: None where the user named none.
    """
    how = TRAIN.format(name=name, gpus=manifest.num_gpus, gpus_text=counted(manifest.num_gpus, "GPU"))
    groups = manifest.groups
    counts = {
        "samples": sum(group.num_samples for group in groups),
        "tokens": sum(group.num_tokens for group in groups),
        "packs": sum(group.num_packs for group in groups),
    }
    facts = [*_counts(counts), *_facts(manifest, groups)]
    return _card(manifest, name, license, None, f"Packed by hbpack {manifest.hbpack_version}.", how, facts)


def card_of_export(manifest: Manifest, listing: ExportListing, name: str, license: str | None) -> str:
    """`README.md` of an export, likewise.

    Args:
        listing: what the export says of itself.
    """
    format = load_format(listing["format"])
    order, rule = ORDERS[listing["order"]]
    places = {"name": name, "format": listing["format"], "order": order, "rule": rule}
    if format.hub_files:
        how = LOAD.format(**places)
    else:
        how, usage = DOWNLOAD.format(**places), format.usage_of("DIR", listing)
        how = START.format(download=how, usage=usage) if usage else how
    groups = [group for group in manifest.groups if group.name in listing["groups"]]
    counts = {"samples": listing["num_samples"], "tokens": listing["num_tokens"], "packs": listing["num_rows"]}
    facts = [*_counts(counts), *_facts(manifest, groups)]
    if listing.get("loss_weights") is False:
        facts.append(("loss weights", "left out: every loss token counts 1"))
    what = f"Packed by hbpack {manifest.hbpack_version}, and exported to `{listing['format']}`."
    return _card(manifest, name, license, format.hub_files, what, how, facts)


def _card(
    manifest: Manifest,
    name: str,
    license: str | None,
    data_files: str | None,
    what: str,
    how: str,
    facts: Sequence[tuple[str, str]],
) -> str:
    lines = ["---", *_metadata(license, data_files), "---", "", f"# {name}", "", what, "", *how.split("\n"), ""]
    lines += [*_table(("", ""), facts), "", "## Sources", ""]
    lines += _table(("source", "weight"), [(source["name"], f"{source['weight']:g}") for source in manifest.sources])
    if license is None:
        lines += ["", "No licence was named: those of the sources hold."]
    return "\n".join(lines) + "\n"


def _metadata(license: str | None, data_files: str | None) -> Iterator[str]:
    if license is not None:
        yield f'license: "{license}"'
    yield "tags: [hbpack]"
    if data_files is None:
        yield "viewer: false"
    else:
        yield from ("configs:", "- config_name: default", f'  data_files: "{data_files}"')


def _table(header: tuple[str, str], rows: Iterable[tuple[str, str]]) -> list[str]:
    cells = [tuple(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {header[0]} | {header[1]} |", "|---|---|", *(f"| {first} | {second} |" for first, second in cells)]


def _counts(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    return ((name, f"{count:,}") for name, count in counts.items())


def _facts(manifest: Manifest, groups: Sequence[GroupInfo]) -> Iterator[tuple[str, str]]:
    plan, overall = manifest.config.plan, manifest.metrics.overall
    yield "groups, CAPACITY:SP_DEGREE", ", ".join(f"{format_tokens(g.capacity)}:{g.sp_size}" for g in groups)
    yield "planned for", counted(manifest.num_gpus, "GPU")
    yield "recipe", f"strategy {plan['strategy']}, packing {plan['packing']}, overflow {plan['overflow']}"
    if plan.get("global_tokens"):
        yield "tokens of an optimizer step", f"{plan['global_tokens']:,}"
    yield "loss on", f"{manifest.config.tokens['loss_on']}"
    yield "seed", str(manifest.seed)
    whole = "" if len(groups) == len(manifest.groups) else " of the whole set"
    yield f"padding ratio (PR){whole}", f"{overall.pr:.4f}"
    yield f"attention balance ratio (ABR){whole}", f"{overall.abr:.4f}"
    tokenizer = manifest.tokenizer
    yield "tokenizer", f"{_without_folders(tokenizer.get('name') or '-')}, fingerprint `{tokenizer['fingerprint']}`"
    if tokenizer.get("chat_template_fingerprint"):
        yield "chat template", f"fingerprint `{tokenizer['chat_template_fingerprint']}`"
    yield "fingerprint of the set", f"`{manifest.fingerprint}`"


def _without_folders(name: str) -> str:
    """A name on the Hub as it is; of a path, the end: the folders of a machine are nobody else's business."""
    return Path(name).name if Path(name).is_absolute() else name
