"""Remote storage (S3 or anything else that fsspec opens), shared by the commands and the loader.

::

    system.py     opens the file system of a URL, with one-line errors, and sends it requests
    retries.py    sends requests that fail again, and counts the failures
    path.py       `RemotePath`: the part of `pathlib.Path` that hbpack uses, for a URL
    file.py       reads an object in ranges, ahead of the reader
    lock.py       one run at a time writes to a folder
    local.py      an object as a file of this node, to be memory-mapped; the cache of such files, shared by processes
    ranged_copy.py  the ranges of an object that this node has read, in a sparse file of that cache
"""
