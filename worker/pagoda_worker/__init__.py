"""What prefill and decode workers share: an engine's step loop and everything around it.

The loop and the sequences lie here; `kv_transfer` moves blocks between workers, `tiers` to and from
the kvstore, `heartbeat` and `telemetry` tell how it goes. Knows no HTTP, no money and no role. Most
modules need torch, `settings` does not.
"""
