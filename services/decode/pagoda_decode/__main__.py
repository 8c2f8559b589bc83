"""`python -m pagoda_decode`: runs one decode worker until SIGTERM."""

import sys

from pagoda_runtime.process.loading import loading

with loading():
    from pagoda_decode.config import DecodeSettings
    from pagoda_runtime.configuration.settings import CommonSettings
    from pagoda_runtime.identity import new_worker_id
    from pagoda_runtime.process.service import load_or_exit, run_service


def main() -> int:
    """Run the worker. Returns the exit code."""
    common = load_or_exit(CommonSettings)
    settings = load_or_exit(DecodeSettings)
    worker_id = settings.worker_id or new_worker_id("decode")
    with loading():  # after the settings: importing torch takes a second
        from pagoda_decode.server import serve

    return run_service(
        "decode",
        common,
        lambda context: serve(context, settings),
        health_host=settings.health_host,
        health_port=settings.health_port,
        instance_id=worker_id,
    )


if __name__ == "__main__":
    sys.exit(main())
