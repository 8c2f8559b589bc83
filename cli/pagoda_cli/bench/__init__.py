"""`pagoda bench`: measure any OpenAI-compatible endpoint."""

from pagoda_cli.bench.command import bench

__all__ = ["bench"]
