"""Model families: each a page that turns its ``config.json`` into a DecoderDescription."""
