"""What tenants get of an engine: whose sequences are here, what each holds, its share of a step."""
