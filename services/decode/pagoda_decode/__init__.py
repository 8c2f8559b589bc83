"""The decode worker: receives KV blocks or computes them, generates tokens. Knows no HTTP."""
