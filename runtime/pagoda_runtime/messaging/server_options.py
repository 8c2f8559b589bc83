"""What a NATS server's configuration says of clients that have gone without a word."""

GIVE_UP = """ping_interval: "3s"
ping_max: 2
write_deadline: "3s"
"""
"""Whose host is lost is given up within 9 s, or when nothing could be written to it for 3 s.

By default that takes minutes, in which it gets its share of what is for one of several (routers),
and whoever sends to it waits up to 10 s for the server to write. Who was only frozen comes back.
"""
