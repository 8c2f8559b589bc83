"""`pagoda trace`: where the time of one request went."""
