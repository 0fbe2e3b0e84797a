"""Sets with trees, from records to what reads them."""
