"""HTTP: the application, its routes and server, who may come in, and what is written to a client.

Knows no prompt formats, no tokens and no workers: `openai` and `sequences` do.
"""
