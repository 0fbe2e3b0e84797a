"""Loads tokenizers by their Hugging Face Hub name, from the local cache or else over the network."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packer_cli.errors import TokenizerError
from packer_cli.tokens.tokenizer.reads import NAMES, refused_code

_TRUE = {"1", "on", "yes", "true"}


def load_from_hub(name: str, *, probe_timeout: float = 5.0) -> Any:
    """The tokenizer of a Hub repository.

    Without a network, the Hub's client would retry for minutes, so this first tests the connection.

    Raises:
        TokenizerError: it is not in the cache, and the Hub cannot be reached or does not have it.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        cached = error
    refused = refused_code(cached, name)
    if refused is not None:
        raise refused from None
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = any(os.environ.get(key, "").lower() in _TRUE for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    if offline or not can_connect(endpoint, timeout=probe_timeout):
        why = "offline mode is on" if offline else f"{urlsplit(endpoint).hostname} cannot be reached"
        raise TokenizerError(
            f"{name}: no such file or folder, not in the local Hugging Face cache, and {why}; "
            "give the folder of a downloaded tokenizer"
        ) from cached
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        refused = refused_code(error, name)
        if refused is not None:
            raise refused from None
        text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
        raise TokenizerError(
            f"{name}: no such file or folder, and the Hugging Face Hub has no tokenizer of that name "
            f"({text[:200]}); check the name, or give the folder of a downloaded tokenizer"
        ) from None


def cached_snapshot(name: str) -> Path | None:
    """A repository's folder in the Hub's cache; None if that holds no tokenizer files."""
    from huggingface_hub import try_to_load_from_cache

    for file in NAMES:
        try:
            found = try_to_load_from_cache(name, file)
        except ValueError:  # not a valid Hub name
            return None
        if isinstance(found, str) and file != "config.json":  # which may be there for the model alone
            return Path(found).parent
    return None


def can_connect(endpoint: str, *, timeout: float) -> bool:
    """Whether a TCP connection to the endpoint, or to its proxy, opens within the timeout (s)."""
    from urllib.request import getproxies, proxy_bypass

    target = urlsplit(endpoint)
    proxies = getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    try:
        host, port = target.hostname or "", target.port or (80 if target.scheme == "http" else 443)
    except ValueError:
        return False
    answers: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=timeout).close()
            answers.append(True)
        except OSError:
            answers.append(False)

    # A name look-up ignores the timeout, so run it in a thread that may be left behind.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    return answers == [True]
