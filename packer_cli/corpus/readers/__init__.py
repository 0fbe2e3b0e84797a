"""File readers: one format a file, one signature (`FileReader`), one registry (`registry.py`)."""
