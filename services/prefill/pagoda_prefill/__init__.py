"""The prefill worker: runs prompts, publishes first tokens, sends KV blocks to decode workers.

Knows what sets prefill apart from decode, and the consumers' leases. Knows no HTTP and no money.
"""
