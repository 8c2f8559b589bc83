"""KV between two processes on one device: links, first tokens, gaps between tokens."""
