"""A tokenizer, from a folder, a file or the hub.

::

    loading.py  what the rest of hbpack sees: `LoadedTokenizer`
    files.py    the files of a tokenizer to transformers' class; hub.py finds them by a name
    reads.py    which files say what, and their fingerprints
    lean_transformers.py   transformers' submodules without its package
"""
