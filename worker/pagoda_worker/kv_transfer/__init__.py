"""KV blocks from the worker that computed them to the one that reserved room for them."""
