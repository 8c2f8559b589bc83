"""Files and batches: kept in the ledger's database, run line by line in the background.

Knows rows and lines. Knows no HTTP: whoever runs a line is handed in.
"""
