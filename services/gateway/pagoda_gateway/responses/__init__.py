"""OpenAI's Responses API as data: items turned into chats, results turned into items, and kept."""
