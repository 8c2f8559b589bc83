"""Log lines of one process: one JSON object each, with the trace they belong to, or plain text."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

QUIET_LOGGERS = ("asyncio", "grpc", "httpx", "nats", "uvicorn.access", "urllib3")


def setup_logging(service: str, *, instance_id: str, level: str, log_format: str) -> None:
    """Send all log lines to stderr in the given format; replaces earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(service, instance_id)
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class JsonFormatter(logging.Formatter):
    """One JSON object for each record."""

    def __init__(self, service: str, instance_id: str) -> None:
        super().__init__()
        self._service = service
        self._instance_id = instance_id

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its newline."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "service": self._service,
            "instance": self._instance_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        context = get_current_span().get_span_context()
        if context.is_valid:
            line["trace_id"] = format_trace_id(context.trace_id)
            line["span_id"] = format_span_id(context.span_id)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
