"""What files and batches need of HTTP: uploads as they come, and lines as requests in here."""
