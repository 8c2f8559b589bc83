"""`pagoda up`: the whole system on this machine, in the foreground."""
