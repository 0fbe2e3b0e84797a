"""Loads tokenizers from a folder, a file or the Hub.

::

    loading.py  `LoadedTokenizer`, which the rest of hbpack uses
    files.py    loads files with transformers, finds them by a Hub name; the fingerprint of their contents
"""
