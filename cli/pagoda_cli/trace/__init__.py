"""`pagoda trace`: where the time of one request went, from span files in OTLP's JSON form.

Knows the names of a few spans and attributes. Knows no running process.
"""
