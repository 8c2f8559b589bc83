"""NATS: one connection, messages, requests, JetStream, and every subject's name.

Owns delivery: what is sent again, what waits, what is dropped. Knows no message in particular.
"""
