"""`pagoda trace`: where the time of one request went, from span files (OTLP JSON) or Jaeger.

Knows the names of a few spans and attributes. Knows no running process.
"""
