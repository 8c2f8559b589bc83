"""The tokenizer of a GGUF file, as the `tokenizer.json` that its model had before.

Knows the metadata of a file and the layout of tokenizer.json. Imports no tokenizer.
"""
