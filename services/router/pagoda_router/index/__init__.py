"""The prefix index in Redis: its names, its reader, its writer.

Owns which worker holds which block hash, as far as events said so. Knows no load and no cost.
"""
