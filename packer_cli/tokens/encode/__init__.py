"""Turns documents into token ids and loss masks.

::

    encoder.py   batches of documents -> samples; falls back to the reference where the fast backend differs
    prepare.py   a document -> text and the ranges to train on; rows.py puts EOS at the ends
    backends.py  gigatoken, and tokenizers as its reference
    masks.py     ranges of chars -> masks; byte_lengths.py: the bytes that each token stands for
    unicode.py   texts on which gigatoken and tokenizers agree
    specials.py  special tokens inside the data
"""
