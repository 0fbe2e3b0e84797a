"""File readers: one kind of format a file, one signature (`FileReader`), one registry (`registry.py`)."""
