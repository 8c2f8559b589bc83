"""One output as its frames arrive: tokens, text, log probabilities, what it may not say.

Knows no other output, no request and no worker.
"""
