"""Between text and tokens: the model's tokenizer and template, prompts, detokenising, stop strings.

Knows no request's fields, no HTTP and no workers.
"""
