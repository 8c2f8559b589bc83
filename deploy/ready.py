"""Container health check: exit 0 when the service in this container says that it is ready."""

import sys
import urllib.request

port = sys.argv[1]
urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2)
