"""Remote storage (S3 or anything else that fsspec opens), shared by the commands and the loader.

::

    system.py     opens the file system of a URL, with one-line errors; what is retried, how often, and what is not
    path.py       `RemotePath`: the part of `pathlib.Path` that hbpack uses, for a URL
    connect.py    whether a server can be reached
    names.py      what the user or a file calls a path, and the path
    file.py       reads an object in ranges, ahead of the reader
    lock.py       one run at a time writes to a folder
    cache.py      files on this node's disk, shared by its processes
    local.py      an object as a file of this node, to be memory-mapped
"""
