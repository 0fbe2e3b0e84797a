"""Lines for people about tokenizing: the choices before the work, what differs from those of an earlier run, and the
results after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from packer_cli.config import TokenizeConfig
from packer_cli.config.messages import option_name
from packer_cli.corpus.data_files import by_suffix, shown_skipped
from packer_cli.format.tokens import TokenizerInfo
from packer_cli.sizes import counted
from packer_cli.tokens.index import StoreIndex
from packer_cli.tokens.tokenizer.files import template_file


def choices(config: TokenizeConfig, tokenizer: TokenizerInfo) -> list[str]:
    """Write one line each for the tokenizer, the template, the loss and EOS.

    Args:
        tokenizer: the result of `packer_cli.tokens.part.describe_tokenizer`.
    """
    rows = {
        "tokenizer": f"{config.tokenizer}, run by {tokenizer.backend}",
        "template": _template(config, has_template=tokenizer.chat_template_fingerprint is not None),
        "loss": _loss(config.loss_on) + (", each turn in a sample of its own" if config.turns == "branch" else ""),
        "EOS": _eos(config.append_eos, tokenizer.eos_token if tokenizer.eos_token_id is not None else None),
    }
    return [f"{name:<11}{text}" for name, text in rows.items()]


_PARTS = {"reasoning": "the reasoning", "tool-calls": "the tool calls"}


def _loss(loss_on: str) -> str:
    names = loss_on.split("+")
    if loss_on == "all":
        return "on every token"
    turns = "the last assistant turn" if "last-turn" in names else "assistant turns"
    parts = [text for name, text in _PARTS.items() if name in names]
    if parts:
        turns = f"{' and '.join(parts)} of {turns}"
    if "no-reasoning" in names:
        turns += " without reasoning"
    if "reasoning" in names and "tool-calls" not in names:
        return f"on {turns} and completions"
    return f"on {turns}" if "tool-calls" in names else f"on {turns}, completions and plain texts"


def _template(config: TokenizeConfig, *, has_template: bool) -> str:
    if not has_template:
        return "none; Alpaca records take Stanford's prompt"
    if config.chat_template is None:
        name = template_file(config.tokenizer)
        source = f"the tokenizer's own ({name})" if name else "the tokenizer's own"
    else:
        is_text = "\n" in config.chat_template or "{" in config.chat_template
        source = "the text given as --chat-template" if is_text else config.chat_template
    if config.date is not None:
        source += f", dated {config.date} (--date gives another)"
    if config.alpaca == "stanford":
        return f"{source}; Alpaca records take Stanford's prompt"
    return f"{source}, for Alpaca records too"


def _eos(append: str, eos: str | None) -> str:
    if append == "never":
        return "never added"
    if eos is None:
        return "none: the tokenizer has no EOS token"
    if append == "always":
        return f"{eos} after every sample"
    return f"{eos} after completions, texts and chats that are left open"


def changed(before: StoreIndex, now: StoreIndex, tokenizer: TokenizerInfo, files: Mapping[str, str]) -> list[str]:
    """List, for people, the differences between a store and the run that replaces it.

    Args:
        now: facts about the whole run; of its tokenizer only the name.
        tokenizer: the run's.
        files: the fingerprint of each file's content, by name, in order, and of each part that stays as it is, by
            number; empty if the run makes a part of the store.
    """
    old = before.tokenizer
    is_template = old.chat_template_fingerprint != tokenizer.chat_template_fingerprint
    is_other = (old.name, old.vocab_size) != (now.tokenizer.name, tokenizer.vocab_size) or not is_template
    found = ["the tokenizer"] * (is_other and old.fingerprint != tokenizer.fingerprint)
    found += ["the chat template"] * (is_template or before.options.chat_template != now.options.chat_template)
    was, new = (
        {option_name(name): str(value).lower() for name, value in vars(each.options).items()} | each.library_versions
        for each in (before, now)
    )
    names = [name for name in was | new if was.get(name) != new.get(name) and name != "--chat-template"]
    found += [f"{name} {was.get(name, 'none')} -> {new.get(name, 'none')}" for name in names]
    stay = {f"{at}" for at, part in enumerate(before.parts) if files.get(f"{at}") == part.fingerprint}
    replaced = [part for at, part in enumerate(before.parts) if files and f"{at}" not in stay]
    known = {file.path: file.fingerprint for part in replaced for file in part.files}
    files = {name: content for name, content in files.items() if name not in stay}
    lost, more = Counter(known.values()), Counter(files.values())
    other = sum(known[path] != files[path] for path in known.keys() & files)
    counts = {"added": (more - lost).total() - other, "removed": (lost - more).total() - other, "changed": other}
    found += [f"{counted(number, 'file')} {what}" for what, number in counts.items() if number > 0]
    return found or ["the order of files"] * ([*known.values()] != [*files.values()])


_SHAPES = {"tokens": "pre-tokenized"}
_ITEMS = {"preference": "preference pair", "completions": "group"}
"""Names to show for shapes whose own name would mislead next to a number."""


def tokenized(index: StoreIndex, num_reused: int, seconds: str) -> list[str]:
    """Write lines about the records that were tokenized, reused and rejected.

    Args:
        num_reused: records in parts that an earlier run wrote.
        seconds: the time of the run, as text.
    """
    num_samples, num_rejected = index.total("num_samples"), index.total("num_rejected")
    num_records = num_samples + num_rejected
    done = f"tokenized {counted(num_records - num_reused, 'record')}"
    if num_reused and num_reused == num_records:
        done = f"reused {counted(num_records, 'tokenized record')}"
    elif num_reused:
        done += f" and reused {num_reused:,}"
    shapes = sum((Counter(part.shapes) for part in index.parts), Counter[str]())
    by_shape = ", ".join(
        counted(count, _ITEMS[shape]) if shape in _ITEMS else f"{count:,} {_SHAPES.get(shape, shape)}"
        for shape, count in shapes.most_common()
    )
    what = counted(num_samples, index.unit) + (f" ({by_shape})" if shapes else "")
    rejected = f"{num_rejected:,} rejected"
    if num_without_loss := index.total("num_without_loss"):
        rejected += f", {num_without_loss:,} of them without loss tokens with --loss-on {index.options.loss_on}"
    if num_excluded := sum(len(part.excluded) for part in index.parts):
        rejected += f", {num_excluded:,} of them excluded"
    lines = [f"{done}: {what}, {counted(index.total('num_tokens'), 'token')}, {rejected} ({seconds})"]
    if index.unit == "item":
        lines.append(_items(index))
    if num_samples:
        lines.append(_ends(index, index.total("num_open"), num_samples))
    return lines


_KINDS = {"pair": "pair", "group": "group", "turns": "conversation"}


def _items(index: StoreIndex) -> str:
    """Write the contents of items, and the tokens that their shared prefixes save."""
    kinds = sum((Counter(part.kinds) for part in index.parts), Counter[str]())
    num_branches = sum(part.num_branches for part in index.parts if part.kinds) - kinds["sample"]
    whole = counted(index.total("num_flat_tokens"), "token")
    num_saved = index.total("num_flat_tokens") - index.total("num_tokens")
    some = ", ".join(counted(kinds[kind], name) for kind, name in _KINDS.items() if kinds[kind])
    return f"{some}: {counted(num_branches, 'sample')}; sharing prefixes saves {num_saved:,} of {whole}"


def _ends(index: StoreIndex, num_open: int, num_samples: int) -> str:
    if not num_open:
        return "every sample ends with EOS or an end of turn"
    if index.options.append_eos == "never":
        why = "--append-eos never"
    else:
        has_answers = any(shape in part.shapes for part in index.parts for shape in ("preference", "completions"))
        others = "answers that are messages, " if has_answers else ""
        why = f"pre-tokenized records, {others}and chats in which the assistant does not speak last, stay as they are"
    ends = "ends" if num_open == 1 else "end"
    return f"{num_open:,} of {counted(num_samples, index.unit)} {ends} without EOS or an end of turn: {why}"


def all_rejected(index: StoreIndex) -> str:
    """Write the error for a store without a sample."""
    if all(part.num_rejected == part.num_without_loss for part in index.parts):
        rule = index.options.loss_on
        is_best = rule == "all" or index.options.turns == "branch"
        remedy = "" if is_best else " (--loss-on all trains on every token)"
        return f"no record has loss tokens with --loss-on {rule}{remedy}"
    return "every record was rejected"


MOST_WARNINGS = 4
_MANY = 0.01
"""Share of rejected records above which they are no slips of single records."""


def rejected_files(index: StoreIndex) -> list[str]:
    """List the files of which no record is used, although they have some."""
    samples: Counter[str] = Counter()
    for file in (file for part in index.parts for file in part.files if file.num_samples or file.num_rejected):
        samples[file.path] += file.num_samples
    return [path for path, number in samples.items() if not number]


def many_rejected(index: StoreIndex, lost: Sequence[str]) -> str | None:
    """Write the warning of a run that rejects many records, or whole files; None if the run uses nearly all, or none.

    Args:
        lost: see `rejected_files`.
    """
    num_rejected, num_samples = index.total("num_rejected"), index.total("num_samples")
    num_records = num_samples + num_rejected
    num_refused = sum(file.num_refused for part in index.parts for file in part.files)
    if not num_samples or not (lost or num_refused > _MANY * num_records):
        return None
    others = f" and {counted(len(lost) - 1, 'other file')}" if len(lost) > 1 else ""
    files = f", among them all of {lost[0]}{others}" if lost else ""
    are, share = "is" if num_rejected == 1 else "are", num_rejected / num_records
    return f"{num_rejected:,} of {counted(num_records, 'record')} ({share:.2%}) {are} rejected{files}"


def counts(index: StoreIndex) -> list[str]:
    """Write a warning for each thing that most records have and that is not used, or used in a way that may surprise;
    write one for all further things."""
    how = "as ordinary text" if index.options.plain_content else "as control tokens (see --plain-content)"
    special = f"the text of special tokens, encoded {how}", index.total("num_with_special")
    found = Counter(dict((*sorted(index.unused.items()), special))).most_common()
    texts = [f"{counted(n, 'record')} {'has' if n == 1 else 'have'} {what}" for what, n in found if n]
    others = [*filter(None, (not_read(index), _repeated(index)))]
    most = MOST_WARNINGS - len(others)
    if len(texts) > most:
        texts[most - 1 :] = [f"{len(texts) - most + 1} further things that records have; --json counts each"]
    return texts + others


def not_read(index: StoreIndex) -> str | None:
    """Write a warning of the files of folders and globs that were skipped; return None if there are none."""
    skipped = by_suffix(each for source in index.sources for each in source.skipped or ())
    return None if skipped is None else f"skipped {shown_skipped(skipped)}"


def _repeated(index: StoreIndex) -> str | None:
    """Write a warning if inputs hold the same content several times, so that samples repeat in each epoch; else None.

    A file may be in several inputs, or have copies and hard links of other names.
    """
    names: dict[str, dict[tuple[int, str], None]] = {}
    for file in (file for part in index.parts for file in part.files):
        names.setdefault(file.fingerprint, {})[file.source, file.path] = None
    copies = [[path for _, path in each] for each in names.values() if len(each) > 1]
    if not copies:
        return None
    first, second = copies[0][:2]
    others = f", and {counted(len(copies) - 1, 'other file')}," if len(copies) > 1 else ""
    where = f"again as {second}" if second != first else "in several inputs"
    return f"{first}{others} is there {where}, and an epoch has it once for each; leave out all but one"
