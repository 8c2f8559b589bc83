"""`python -m pagoda_kvstore`."""

import sys

from pagoda_runtime.process.loading import loading

with loading():
    from pagoda_kvstore import app
    from pagoda_kvstore.config import KvstoreSettings
    from pagoda_runtime.configuration.settings import CommonSettings
    from pagoda_runtime.process.service import load_or_exit, run_service


def main() -> int:
    """Run until told to stop and return the exit code."""
    common, settings = load_or_exit(CommonSettings), load_or_exit(KvstoreSettings)
    return run_service(
        "kvstore",
        common,
        lambda context: app.run(context, settings),
        health_host=settings.health_host,
        health_port=settings.health_port,
    )


if __name__ == "__main__":
    sys.exit(main())
