"""What is sent to a server, and how what it answers is timed and summed up."""
