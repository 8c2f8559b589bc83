"""Anthropic's Messages API as data: bodies turned into chats, results turned into messages."""
