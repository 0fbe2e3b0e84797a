"""Steps that several packings and strategies share: fill free space, deal and even out packs."""
