"""How the tables became what they are: one file in `versions/` for each change, run by Alembic.

Revisions only add, as long as gateways of the version before may still run: they know nothing of
what is new. They name their columns themselves and never ask today's tables.
"""
