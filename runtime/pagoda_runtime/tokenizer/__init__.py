"""A model's tokenizer as the text of a `tokenizer.json`, whichever files the model has it in.

Knows GGUF's metadata, sentencepiece models, tiktoken's files, and the layout of tokenizer.json.
Imports no tokenizer.
"""
