"""OpenAI's API as data: bodies checked and turned into sequences, results turned into answers.

One processor for each endpoint, `schemas/` for each body, one module for each concern they share.
Knows no HTTP and no workers.
"""
