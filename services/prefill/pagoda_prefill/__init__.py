"""The prefill worker: runs prompts, sends KV blocks to decode workers. Knows no HTTP."""
