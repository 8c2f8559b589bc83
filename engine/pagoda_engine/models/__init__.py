"""Decoder models: what one is (`description`), how it is built, one forward for all of them.

Knows families, weights and layers. Knows nothing of sequences, steps or who owns a block.
"""
