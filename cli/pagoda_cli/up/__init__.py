"""`pagoda up`: the whole system on this machine, in the foreground.

Owns the processes, their ports, secrets and restarts. Knows the services by their settings and by
their /readyz; all of it needs the extra `pagoda-cli[up]`.
"""
