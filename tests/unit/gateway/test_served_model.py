"""The served model, learnt from heartbeats."""

import pytest
from support.scripted_worker import tiny_card

from pagoda.rpc.v1.status_pb2 import ModelCard, Role, WorkerState, WorkerStatus
from pagoda_gateway.errors import ModelNotFoundError, UnavailableError
from pagoda_gateway.served_model import Catalog
from pagoda_runtime.status import WorkerDirectory


def status(
    card: ModelCard, role: "Role" = Role.ROLE_DECODE, *, worker_id: str = "w"
) -> WorkerStatus:
    return WorkerStatus(
        worker_id=worker_id, epoch="1", role=role, model=card, state=WorkerState.WORKER_STATE_READY
    )


def test_model_is_known_from_a_decode_worker_and_stays_known() -> None:
    directory = WorkerDirectory()
    alive: list[int] = []
    catalog = Catalog(directory, "tiny", on_alive=alive.append)
    with pytest.raises(UnavailableError):
        catalog.get("tiny")
    directory.on_status(status(tiny_card(), Role.ROLE_PREFILL))
    assert catalog.model is None
    directory.on_status(status(tiny_card()))
    directory.on_status(status(tiny_card()))
    gone = status(tiny_card())
    gone.state = WorkerState.WORKER_STATE_GONE
    directory.on_status(gone)
    assert catalog.get("tiny").max_model_len == 512
    assert alive == [1, 0]


def test_other_models_are_not_found() -> None:
    directory = WorkerDirectory()
    directory.on_status(status(tiny_card("other")))
    catalog = Catalog(directory, "tiny")
    with pytest.raises(ModelNotFoundError, match="other"):
        catalog.get("other")
    assert catalog.model is None


def test_a_new_identity_replaces_the_old_one() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, "tiny")
    directory.on_status(status(tiny_card()))
    card = tiny_card(max_model_len=64)
    card.kv_identity = bytes(16)
    directory.on_status(status(card))
    assert catalog.get("tiny").max_model_len == 64


def test_limit_is_the_least_of_the_decode_workers_alive() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, "tiny")
    directory.on_status(status(tiny_card(max_model_len=100), worker_id="a"))
    directory.on_status(status(tiny_card(max_model_len=64), worker_id="b"))
    directory.on_status(status(tiny_card(max_model_len=32), Role.ROLE_PREFILL, worker_id="p"))
    assert catalog.get("tiny").max_model_len == 64
    gone = status(tiny_card(max_model_len=64), worker_id="b")
    gone.state = WorkerState.WORKER_STATE_GONE
    directory.on_status(gone)
    assert catalog.get("tiny").max_model_len == 100
