"""OpenAI's API as data: bodies checked and turned into sequences, results turned into answers."""
