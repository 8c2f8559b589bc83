"""What prefill and decode workers share. Most modules need torch, `settings` does not."""
