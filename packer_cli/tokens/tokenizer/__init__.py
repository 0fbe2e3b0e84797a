"""A tokenizer, from a folder, a file or the hub.

::

    loading.py  what the rest of hbpack sees: `LoadedTokenizer`
    files.py    the files of a tokenizer to transformers' class; hub.py finds them by a name
    reads.py    which files are read; fingerprint.py: of what they hold
    lean_transformers.py   transformers' submodules without its package
"""
