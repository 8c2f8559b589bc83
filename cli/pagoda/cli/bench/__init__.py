"""`pagoda bench`: measure any OpenAI-compatible endpoint."""

from pagoda.cli.bench.command import bench

__all__ = ["bench"]
