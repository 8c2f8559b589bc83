"""Between text and tokens: templates, tokenizer, detokenizer, stop strings. Knows no HTTP."""
