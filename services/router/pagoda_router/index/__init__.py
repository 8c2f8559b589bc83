"""The prefix index in Redis: its names, its reader, its writer."""
