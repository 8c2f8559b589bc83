"""The workers that are alive, and the load of choices that they have not reported yet.

Owns the last heartbeat of each. Knows neither prefixes nor requests.
"""
