"""NATS: one connection, messages, requests, JetStream, and every subject's name."""
