"""GGUF files as models: llama.cpp's metadata and names, in the words that families read."""
