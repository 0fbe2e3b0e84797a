"""Planning strategies: lengths and a cost model in, packs and iterations out."""
