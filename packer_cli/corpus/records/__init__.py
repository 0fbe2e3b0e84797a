"""Record shapes: from a raw dict to a `Document`, one shape a file, one registry (`shapes.py`)."""
