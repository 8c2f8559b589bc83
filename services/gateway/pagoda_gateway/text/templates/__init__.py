"""Chat templates: rendered in a sandbox, and told what they can show."""
