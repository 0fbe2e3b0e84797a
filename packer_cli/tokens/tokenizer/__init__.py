"""Loads tokenizers from a folder, a file or the Hub.

::

    loading.py  `LoadedTokenizer`, which the rest of hbpack uses
    files.py    loads files with transformers; hub.py finds them by a Hub name
    reads.py    lists the files that are read; fingerprint.py: the fingerprint of their contents
    lean_transformers.py   imports transformers' submodules without the package
"""
