"""OpenAI's embeddings as data: inputs turned into prompts, vectors turned into an answer."""
