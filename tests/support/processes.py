"""Processes of a stack, found from outside."""

import psutil


def busy_decode_workers(parent_pid: int) -> list[psutil.Process]:
    """The decode process that generates now: the one with the most CPU time lately."""
    workers = [
        process
        for process in psutil.Process(parent_pid).children(recursive=True)
        if "pagoda_decode" in " ".join(process.cmdline())
    ]
    for worker in workers:
        worker.cpu_percent()
    return sorted(workers, key=lambda worker: worker.cpu_percent(interval=0.1))[-1:]
