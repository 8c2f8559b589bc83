"""HTTP: the application, its routes and server, who may come in, and what is written to a client.

Knows no prompt formats, and asks no worker: `openai` and `sequences` do.
"""
