"""Contents of every plan, and the figures that judge it, below packing and strategies, without knowledge of papers."""
