"""The gateway: OpenAI's and Anthropic's HTTP APIs in front of the workers.

Owns HTTP, text <-> tokens, the requests in flight, keys and accounts. Does not know tensors, what
is in KV blocks, or where workers are: routers choose, and messages find their way by subjects.

Imports go down this list, never up:

- `http`: routes, bodies, answers, the server.
- `gateway`: the parts of one replica, made and tied together.
- `batches`: files and batches, whose lines `http` runs.
- `anthropic`, `responses`: other APIs' bodies turned into chats, and their answers.
- `openai`: bodies checked and turned into sequences; results turned into answers.
- `sequences`: placement, frames, failover. Hears of accounts only as a log of open records.
- `text`: tokens <-> text, templates, stop strings.
- `accounts`: keys, the usage log, the ledger, receipts. Known to `gateway`, `http` and, as
  a database, `batches`.
- `served_model`, `config`, `errors`, `metrics`, `sse`, `json_limits`: known to all.
"""
