"""File formats that more than one member reads. Knows bytes; knows nothing of what they are for.

The engine takes tensors of a GGUF file, gateways and workers its tokenizer; what control groups
allow, engine and kvstore ask. Neither may import the other, so what all of them trust is here: the
standard library alone, no byte of a file believed.
"""
