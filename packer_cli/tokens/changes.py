"""The differences between a run and the one that made the store, for a line before the work begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from packer_cli.config.messages import option_name
from packer_cli.format.tokens import TokenizerInfo
from packer_cli.sizes import counted
from packer_cli.tokens.index import StoreIndex


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
