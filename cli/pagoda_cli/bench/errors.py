"""Errors of the bench command.

BenchError
├── UsageError       flags that contradict each other or cannot be parsed
├── TraceFileError   a trace file that is not what it says
└── PromptError      no prompt of the wanted length can be made
"""


class BenchError(Exception):
    """Root: the benchmark cannot run; the message says why and what to do."""


class UsageError(BenchError):
    """Flags contradict each other or cannot be parsed."""


class TraceFileError(BenchError):
    """A trace file is not what it says, at a given line."""


class PromptError(BenchError):
    """No prompt of the wanted length can be made with the given tokenizer."""
