"""What the applier counts, and no gateway: a process exports what it imports, if only as zeros."""

from prometheus_client import Counter, Gauge, Histogram

APPLIED = Counter("pagoda_ledger_records", "Usage records written to the ledger", ["kind"])
APPLY_SECONDS = Histogram(
    "pagoda_ledger_apply_seconds", "Writing some messages' records to the ledger",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2, 10),
)  # fmt: skip
LEDGER_LAG = Gauge("pagoda_ledger_waiting_messages", "Messages that are not in the ledger yet")
RECONCILED = Counter(
    "pagoda_reconciled_requests",
    "Requests of dead gateways, closed from what is known (reconciled) or without anything (lost)",
    ["outcome"],
)
