"""Where responses are kept: rows of the ledger's database, which all replicas share."""
