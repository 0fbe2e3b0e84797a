"""Plans group by group: pack, fill, balance, schedule (HBP, arXiv 2503.07680, algorithm 2)."""
