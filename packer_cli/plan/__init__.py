"""The plan: which samples share a pack, which packs share an iteration, and with which SP degree.

Pure: arrays in, arrays out. Nothing here reads a file or imports click, torch or pyarrow; only the time limit of
`packing/ilp` reads a clock. ::

    lengths -> pieces -> strategy: groups -> packing -> fill -> balance -> schedule -> Plan -> check
               overflow            GroupData  isf, ...   GreedyFill  sort      slots, steps     every invariant

    core/        what every plan is made of and judged by; it knows no paper
    kernels/     steps that several packings and strategies share
    packing/     one algorithm a file, in each of its orders
    strategies/  one file or folder a strategy, behind one protocol, in one registry
    build.py     request -> plan, and the rest of one; figures.py; warming.py loads the kernels

Papers: HBP is arXiv 2503.07680, "Hierarchical Balance Packing".
"""
