"""A generation request over HTTP: its body becomes sequences, these an answer, that an account."""
