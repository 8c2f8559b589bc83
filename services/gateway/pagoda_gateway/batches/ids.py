"""Ids of batches as clients know them: those of messages have a prefix of their own."""

from sqlalchemy import RowMapping

from pagoda_gateway.batches.schemas import MESSAGES

_MORE = "msg"  # batch_..., msgbatch_...


def shown_id(batch: RowMapping) -> str:
    """Return the id by which a batch's client knows it."""
    batch_id: str = batch["batch_id"]
    return _MORE + batch_id if batch["endpoint"] == MESSAGES else batch_id


def stored_id(message_batch_id: str) -> str:
    """Return the id that a batch of messages is kept by; empty: there is none of that name."""
    is_one = message_batch_id.startswith(f"{_MORE}batch_")
    return message_batch_id.removeprefix(_MORE) if is_one else ""
