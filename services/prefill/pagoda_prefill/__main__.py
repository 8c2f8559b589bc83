"""`python -m pagoda_prefill`: runs one prefill worker until SIGTERM."""

import sys

from pagoda_runtime.process.loading import loading

with loading():
    from pagoda_prefill.config import PrefillSettings
    from pagoda_runtime.configuration.settings import CommonSettings
    from pagoda_runtime.identity import new_worker_id
    from pagoda_runtime.process.service import load_or_exit, run_service


def main() -> int:
    """Run the worker. Returns the exit code."""
    common = load_or_exit(CommonSettings)
    settings = load_or_exit(PrefillSettings)
    worker_id = settings.worker_id or new_worker_id("prefill")
    with loading():  # after the settings: importing torch takes a second
        from pagoda_prefill.server import serve

    return run_service(
        "prefill",
        common,
        lambda context: serve(context, settings),
        health_host=settings.health_host,
        health_port=settings.health_port,
        instance_id=worker_id,
    )


if __name__ == "__main__":
    sys.exit(main())
