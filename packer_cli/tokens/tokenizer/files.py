"""Finds a tokenizer's files, and the transformers class that loads them.

The files are those of one list, for loading and for the fingerprint.

Code that comes with a tokenizer never runs: every call has `trust_remote_code=False`, without which transformers may
ask for permission on stdin.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packer_cli.errors import TokenizerError
from packer_cli.files import fingerprint
from packer_cli.format.checksums import file_checksum
from packer_cli.remote.system import can_connect, is_url
from packer_cli.tokens.tokenizer.remote import copy_of

_TEMPLATE_FOLDER = "additional_chat_templates"
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_SIBLINGS = (*_SETTINGS, "config.json", _TEMPLATE_FOLDER)
"""Files used together with a tokenizer.json, whatever that one's name."""

_NAMES = (
    "tokenizer.json",
    *_SETTINGS,
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "config.json",
    "generation_config.json",
    # Files that transformers' classes of single models read.
    *("vocab.txt", "dict.txt", "bpe.codes", "tekken.json", "normalizer.json", "byte_maps.json", "emoji.json"),
    *("entity_vocab.json", "target_vocab.json", "vocab-src.json", "vocab-tgt.json"),
    *("word_shape.json", "word_pronunciation.json", "source.spm", "target.spm", "prophetnet.tokenizer"),
)
_PATTERNS = ("*.model", "tokenizer.model.*", "tokenizer.*.json", "config.*.json", f"{_TEMPLATE_FOLDER}/*.jinja")

_GENERIC_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_DATE = "strftime_now"
_GPT2_END = "<|endoftext|>"
_FORMS = (
    "a tokenizer is a folder with tokenizer.json, a tokenizer.json, a SentencePiece .model, "
    "a vocab.json beside its merges.txt, or a Hugging Face name"
)


def load_hf(path: str) -> Any:
    """Load transformers' tokenizer for a folder, a file or a Hub name.

    Raises:
        TokenizerError: there is none, or it cannot be loaded.
    """
    where = locate(path)
    if where is not None:
        try:
            return _load_folder(where, path) if where.is_dir() else _load_file(where, path)
        except TokenizerError:
            raise
        except Exception as error:
            _check_files(where, path)
            text = refuse_code(error, path)
            raise TokenizerError(f"{path}: cannot be loaded as a tokenizer ({text[:300]}); {_FORMS}") from None
    if _looks_like_path(path):
        raise TokenizerError(f"{path}: no such file or folder; {_FORMS}")
    return load_from_hub(path)


def stop_ids(path: str) -> list[int]:
    """Return the ids at which the model of a tokenizer stops, as its configs list them; none where they do not."""
    where = locate(path)
    folder = cached_snapshot(path) if where is None else where if where.is_dir() else where.parent
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        if folder is not None and (folder / name).is_file():
            found = _read_json(folder / name, path).get("eos_token_id")
            ids += [each for each in (found if isinstance(found, list) else [found]) if type(each) is int]
    return ids


def writes_date(path: str, template: str | None) -> bool:
    """Whether a chat template, or one of a tokenizer's files, asks for the date."""
    where = locate(path)
    if template is None and where is None:
        tokenizer_fingerprint(path)  # Which makes sure that the files are there.
        where = cached_snapshot(path)
    if template is not None or where is None:
        return _DATE in (template or "")
    texts = (file for file in files_of(where) if file.suffix == ".jinja" or "config" in file.name)
    return any(_DATE.encode() in file.read_bytes() for file in texts)


def check_template(template: Any, shown: str) -> None:
    """Raise TokenizerError unless a tokenizer's `chat_template` has one of the forms that transformers accepts."""
    named = template
    if isinstance(template, (list, tuple)) and all(isinstance(item, dict) for item in template):
        named = {item.get("name"): item.get("template") for item in template}
    texts = [*named, *named.values()] if isinstance(named, dict) else [named]
    if template is not None and not all(isinstance(text, str) for text in texts):
        raise TokenizerError(
            f"{shown}: its chat_template is {json.dumps(template, default=str)[:100]}; it must be Jinja text, or a "
            'list of {"name": TEXT, "template": TEXT}; correct it in tokenizer_config.json'
        )


def _check_files(where: Path, shown: str) -> None:
    """Raise TokenizerError if something is obviously wrong with a tokenizer's files."""
    folder, file = (where, where / "tokenizer.json") if where.is_dir() else (where.parent, where)
    if file.suffix == ".json" and file.name != "vocab.json" and file.is_file():
        _check_backend(file, shown, {"model": dict, "added_tokens": list})
    check_template(_read_config(folder, shown).get("chat_template"), shown)


def _check_backend(file: Path, shown: str, parts: dict[str, type]) -> None:
    content = _read_json(file, shown)
    missing = [name for name, kind in parts.items() if not isinstance(content.get(name), kind)]
    if missing:
        raise TokenizerError(f"{shown}: not a tokenizer.json (it has no {' and no '.join(missing)}); {_FORMS}")


def _looks_like_path(path: str) -> bool:
    return (
        path.startswith((".", "/", "~"))
        or path.endswith((".json", ".model", ".jinja", ".txt", ".tiktoken", "/"))
        or not _HUB_NAME.fullmatch(path)
        or os.path.isdir(os.path.dirname(path) or "\0")
    )


def _load_folder(folder: Path, shown: str) -> Any:
    tokenizer_file = folder / "tokenizer.json"
    if tokenizer_file.is_file():
        return _generic(folder) if _is_generic(folder, shown) else _auto(str(folder))
    if models := sorted(folder.glob("*.model")):
        return _load_sentencepiece(models[0], shown)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _load_gpt2(folder, shown)
    raise TokenizerError(f"{shown}: the folder holds no tokenizer.json; {_FORMS}")


def _load_file(file: Path, shown: str) -> Any:
    if file.suffix == ".model":
        return _load_sentencepiece(file, shown)
    if file.suffix == ".tiktoken":
        raise TokenizerError(
            f"{shown}: a .tiktoken file does not say how text is split before merging; "
            "give the model's tokenizer.json instead"
        )
    own = {"tokenizer.json": file}
    if file.name == "merges.txt" or (file.name == "vocab.json" and (file.parent / "merges.txt").is_file()):
        own = {name: file.parent / name for name in ("vocab.json", "merges.txt")}
    elif file.suffix != ".json":
        raise TokenizerError(f"{shown}: unsupported kind of file; {_FORMS}")
    else:
        _check_backend(file, shown, {"model": dict})
    if file.name == "tokenizer.json":
        return _load_folder(file.parent, shown)
    # transformers looks for files by name, so link these under the usual ones, without others beside them.
    with tempfile.TemporaryDirectory(prefix="hbpack-") as scratch:
        for name, path in ({name: file.parent / name for name in _SIBLINGS} | own).items():
            if path.exists():
                (Path(scratch) / name).symlink_to(path.resolve())
        return _load_folder(Path(scratch), shown)


def _read_json(file: Path, shown: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        name = shown if Path(shown).name == file.name else f"{shown}: {file.name}"
        raise TokenizerError(f"{name} is not readable JSON ({str(error)[:200]}); {_FORMS}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{shown}: {file.name} is not a JSON object; {_FORMS}")
    return value


def _is_generic(folder: Path, shown: str) -> bool:
    """Whether AutoTokenizer would choose the generic class for a folder."""
    if (folder / "config.json").exists():
        return False
    config = _read_config(folder, shown)
    return config.get("tokenizer_class") in _GENERIC_CLASSES and "auto_map" not in config


def _read_config(folder: Path, shown: str) -> dict[str, Any]:
    """Read tokenizer_config.json; empty if there is none."""
    file = folder / "tokenizer_config.json"
    return _read_json(file, shown) if file.is_file() else {}


def _generic(where: Path) -> Any:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    return TokenizersBackend.from_pretrained(str(where), local_files_only=True, trust_remote_code=False)


def _auto(name: str, *, is_local: bool = True) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, local_files_only=is_local, trust_remote_code=False)


def _load_sentencepiece(file: Path, shown: str) -> Any:
    """Load a .model by its folder's config if there is one, else so that it encodes as `sentencepiece` does.

    Like `sentencepiece`, a .model without a config adds no BOS or EOS; a model's own class may.
    """
    kind = _read_config(file.parent, shown).get("tokenizer_class")
    is_named = (file.parent / "config.json").is_file() or kind not in _GENERIC_CLASSES
    if is_named and file.name == "tokenizer.model":
        return _auto(str(file.parent))
    hf = _generic(file)
    _normalize_as_sentencepiece(hf, file)
    return hf


def _normalize_as_sentencepiece(hf: Any, file: Path) -> None:
    """Add what the generic class ignores in a model file: the handling of spaces, and pieces that are never split.

    Ids are sentencepiece's own, except for a space beside a user-defined piece if the model removes extra spaces (the
    space is dropped), and for a space at the beginning of the text if the model has such pieces and a dummy prefix.
    """
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(file.read_bytes())
    spec = model.normalizer_spec
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    kinds = model.SentencePiece.Type
    own = [piece.piece for piece in model.pieces if piece.type == kinds.USER_DEFINED]
    if spec.add_dummy_prefix and own:
        # A normalizer would put the space after each of these pieces, too.
        splitter = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        hf.backend_tokenizer.pre_tokenizer = splitter
    elif spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    steps.append(normalizers.Replace(" ", "\u2581"))
    hf.backend_tokenizer.normalizer = normalizers.Sequence(steps)
    controls = [piece.piece for piece in model.pieces if piece.type == kinds.CONTROL]
    hf.add_tokens([AddedToken(piece, normalized=False) for piece in own])
    hf.add_tokens([AddedToken(piece, normalized=False, special=True) for piece in controls], special_tokens=True)


def _load_gpt2(folder: Path, shown: str) -> Any:
    """Load vocab.json and merges.txt: byte-level BPE like GPT-2's, without a space put before the text."""
    if not _is_generic(folder, shown):
        return _auto(str(folder))
    from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer

    config, vocab = _read_config(folder, shown), _read_json(folder / "vocab.json", shown)
    is_own = not config and _GPT2_END in vocab
    # The class would add the ones of GPT-2 to any vocabulary.
    absent = {} if is_own else {name: None for name in ("bos_token", "eos_token", "unk_token") if name not in config}
    return GPT2Tokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **absent)


_TRUE = {"1", "on", "yes", "true"}


def load_from_hub(name: str, *, probe_timeout: float = 5.0) -> Any:
    """Load the tokenizer of a Hub repository.

    Without a network, the Hub's client would retry for minutes, so this first tests the connection.

    Raises:
        TokenizerError: it is not in the cache, and the Hub cannot be reached or does not have it.
    """
    try:
        return _auto(name)
    except Exception as error:
        refuse_code(error, name)
        cached = error
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = any(os.environ.get(key, "").lower() in _TRUE for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    if offline or not can_connect(endpoint, timeout=probe_timeout):
        why = "offline mode is on" if offline else f"{urlsplit(endpoint).hostname} cannot be reached"
        raise TokenizerError(
            f"{name}: no such file or folder, not in the local Hugging Face cache, and {why}; "
            "give the folder of a downloaded tokenizer"
        ) from cached
    try:
        return _auto(name, is_local=False)
    except Exception as error:
        text = refuse_code(error, name)
        raise TokenizerError(
            f"{name}: no such file or folder, and the Hugging Face Hub has no tokenizer of that name "
            f"({text[:200]}); check the name, or give the folder of a downloaded tokenizer"
        ) from None


def cached_snapshot(name: str) -> Path | None:
    """Find a repository's folder in the Hub's cache; None if the cache holds no tokenizer files."""
    from huggingface_hub import try_to_load_from_cache

    for file in _NAMES:
        try:
            found = try_to_load_from_cache(name, file)
        except ValueError:  # not a valid Hub name
            return None
        if isinstance(found, str) and file != "config.json":  # which may be there for the model alone
            return Path(found).parent
    return None


def tokenizer_fingerprint(name: str) -> str:
    """Fingerprint the contents of a tokenizer's files, without loading the tokenizer.

    Files missing from the Hub's cache are downloaded, so that this run and the next see the same files.

    Raises:
        TokenizerError: the name is not a path, and the Hub has no such tokenizer.
    """
    where = locate(name)
    if where is not None:
        # A file may be loaded differently from its folder, such as a vocab.json beside a tokenizer.json.
        own = [] if where.is_dir() or where.name == "tokenizer.json" else [where.name]
        return fingerprint(_contents(where), *own)
    snapshot = cached_snapshot(name)
    if snapshot is None:
        load_hf(name)
        snapshot = cached_snapshot(name)
    return fingerprint("hub", name, _contents(snapshot) if snapshot else [])


def _contents(where: Path) -> list[tuple[str, str]]:
    folder = where if where.is_dir() else where.parent
    return [(path.relative_to(folder).as_posix(), file_checksum(path)) for path in files_of(where)]


def locate(name: str) -> Path | None:
    """Find the folder or file at a tokenizer's path, or this node's copy of it; None if a path does not exist."""
    path = copy_of(name, _NAMES, _PATTERNS) if is_url(name) else os.path.expanduser(name)
    return Path(path) if os.path.isdir(path) or os.path.isfile(path) else None


def refuse_code(error: Exception, shown: str) -> str:
    """Raise TokenizerError if transformers would need a tokenizer's own code to load it; else give its text."""
    if "trust_remote_code" in str(error):
        raise TokenizerError(
            f"{shown}: its config names Python code to load it with (auto_map), but hbpack never runs a tokenizer's "
            "code; remove auto_map from a copy of the folder to use its tokenizer.json as it is"
        ) from None
    return " ".join(str(error).split()) or type(error).__name__


def template_file(name: str) -> str | None:
    """Name of the file with the chat template, for a tokenizer that has one; None for a Hub name."""
    where = locate(name)
    folder = where if where is None or where.is_dir() else where.parent
    names = ("chat_template.jinja", "tokenizer_config.json")
    return next((name for name in names if folder and (folder / name).is_file()), None)


def files_of(where: Path) -> list[Path]:
    """List all files that loading a folder or a file may read, without weights and data, which may be beside them."""
    folder = where if where.is_dir() else where.parent
    named = [folder / name for name in _NAMES]
    found = [path for pattern in _PATTERNS for path in sorted(folder.glob(pattern))]
    return [path for path in dict.fromkeys([*named, *found, where]) if path.is_file()]
