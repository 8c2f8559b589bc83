"""Models, names and aliases, learnt from heartbeats."""

import logging
from collections.abc import Mapping

import pytest
from support.scripted_worker import tiny_card

from pagoda.rpc.v1.status_pb2 import ModelCard, Role, WorkerState, WorkerStatus
from pagoda_gateway.catalog import MAX_LISTED, Catalog
from pagoda_gateway.errors import ModelNotFoundError, UnavailableError
from pagoda_runtime.status import WorkerDirectory


def status(
    card: ModelCard,
    role: "Role" = Role.ROLE_DECODE,
    *,
    worker_id: str = "w",
    epoch: str = "1",
    is_gone: bool = False,
) -> WorkerStatus:
    state = WorkerState.WORKER_STATE_GONE if is_gone else WorkerState.WORKER_STATE_READY
    return WorkerStatus(worker_id=worker_id, epoch=epoch, role=role, model=card, state=state)


def card_of(name: str, *aliases: str, **values: int) -> ModelCard:
    card = tiny_card(name, **values)
    card.aliases.extend(aliases)
    return card


def leads_to(catalog: Catalog) -> dict[str, str]:
    return {id_: model.name for id_, model in catalog.entries.items()}


def test_model_is_known_from_a_decode_worker_and_stays_known() -> None:
    directory = WorkerDirectory()
    heard: list[Mapping[str, int]] = []
    catalog = Catalog(directory, ["tiny", "other"], on_change=heard.append)
    with pytest.raises(UnavailableError, match="'tiny' yet"):
        catalog.get("tiny")
    directory.on_status(status(tiny_card(), Role.ROLE_PREFILL))
    assert not catalog.entries
    directory.on_status(status(tiny_card()))
    directory.on_status(status(tiny_card()))
    directory.on_status(status(tiny_card(), is_gone=True))
    assert catalog.get("tiny").max_model_len == 512
    assert [change["tiny"] for change in heard] == [0, 1, 0]
    assert [change["other"] for change in heard] == [0, 0, 0]


def test_a_model_without_files_here_is_not_offered_and_the_log_says_once_what_to_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    directory.on_status(status(card_of("other", "alias"), worker_id="a"))
    directory.on_status(status(card_of("other", "alias"), worker_id="b"))
    for name in ("other", "alias"):
        with pytest.raises(ModelNotFoundError, match=f"'{name}' .* this server has 'tiny'"):
            catalog.get(name)
    assert not catalog.entries
    assert caplog.text.count("PAGODA_GATEWAY_MODELS") == 1


def test_each_model_has_its_own_facts() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny", "other"])
    directory.on_status(status(card_of("other", max_model_len=64), worker_id="o"))
    directory.on_status(status(card_of("tiny", max_model_len=100), worker_id="t"))
    assert (catalog.get("tiny").max_model_len, catalog.get("other").max_model_len) == (100, 64)
    assert catalog.get("tiny").kv_identity != catalog.get("other").kv_identity
    assert list(catalog.entries) == ["tiny", "other"], "not in the order of the settings"


def test_an_unknown_name_is_answered_with_a_bounded_list() -> None:
    names = [f"model-{i}" for i in range(MAX_LISTED + 3)]
    catalog = Catalog(WorkerDirectory(), names)
    with pytest.raises(ModelNotFoundError) as raised:
        catalog.get("x" * 100_000)
    assert f"'model-{MAX_LISTED - 1}' and 3 more" in str(raised.value)
    assert f"'model-{MAX_LISTED}'" not in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_another_identity_replaces_the_old_one_and_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    directory.on_status(status(tiny_card()))
    card = tiny_card(max_model_len=64)
    card.kv_identity = bytes(16)
    directory.on_status(status(card, worker_id="new"))
    assert catalog.get("tiny").kv_identity == bytes(16)
    assert catalog.get("tiny").max_model_len == 64
    assert "decode worker new serves another model as 'tiny'" in caplog.text


def test_limit_is_the_least_of_the_decode_workers_alive() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    directory.on_status(status(tiny_card(max_model_len=100), worker_id="a"))
    directory.on_status(status(tiny_card(max_model_len=64), worker_id="b"))
    directory.on_status(status(tiny_card(max_model_len=32), Role.ROLE_PREFILL, worker_id="p"))
    assert catalog.get("tiny").max_model_len == 64
    directory.on_status(status(tiny_card(max_model_len=64), worker_id="b", is_gone=True))
    assert catalog.get("tiny").max_model_len == 100


def test_an_alias_leads_to_its_model_as_it_is_now() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    directory.on_status(status(card_of("tiny", "small", "tiny"), worker_id="a"))
    directory.on_status(status(card_of("tiny", max_model_len=64), worker_id="b"))
    assert catalog.get("small") is catalog.get("tiny")
    assert catalog.get("small").max_model_len == 64
    assert list(catalog.entries) == ["tiny", "small"]


@pytest.mark.parametrize(("num_tokens", "num_warnings"), [(268, 1), (267, 0), (100, 0)])
def test_a_tokenizer_of_more_tokens_than_the_model_has_is_said_once(
    caplog: pytest.LogCaptureFixture, num_tokens: int, num_warnings: int
) -> None:
    directory = WorkerDirectory()
    Catalog(directory, ["tiny"], num_tokens={"tiny": num_tokens})
    for worker_id in ("a", "b"):
        directory.on_status(status(tiny_card(), worker_id=worker_id))
    assert caplog.text.count("has 268 tokens, and its vocab_size is 267") == num_warnings


def test_an_alias_that_is_announced_no_more_goes(caplog: pytest.LogCaptureFixture) -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    directory.on_status(status(card_of("tiny", "small"), epoch="1"))
    directory.on_status(status(card_of("tiny", "little"), epoch="2"))
    assert leads_to(catalog) == {"tiny": "tiny", "little": "tiny"}
    assert not caplog.records


def test_an_alias_stays_known_while_no_worker_is_alive() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny", "other"])
    directory.on_status(status(card_of("tiny", "small"), worker_id="t"))
    directory.on_status(status(card_of("tiny", "small"), worker_id="t", is_gone=True))
    directory.on_status(status(card_of("other"), worker_id="o"))
    assert leads_to(catalog) == {"tiny": "tiny", "other": "other", "small": "tiny"}


@pytest.mark.parametrize("order", [("tiny", "other"), ("other", "tiny")])
def test_of_two_models_with_one_alias_the_older_has_it_whoever_was_heard_first(
    order: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny", "other"])
    epochs = {"other": "1", "tiny": "2"}
    for name in order:
        directory.on_status(status(card_of(name, "both"), worker_id=name, epoch=epochs[name]))
    assert catalog.get("both").name == "other"
    said = "'both' is announced as an alias of 'tiny', but leads to 'other' already"
    assert said in caplog.text
    directory.on_status(status(card_of("tiny", "both"), worker_id="t2", epoch="3"))
    assert caplog.text.count(said) == 1


def test_an_alias_that_an_older_model_has_elsewhere_is_not_offered_as_another_model() -> None:
    """Gateways with the older model's files would answer it by that one."""
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    directory.on_status(status(card_of("elsewhere", "both"), worker_id="e", epoch="1"))
    directory.on_status(status(card_of("tiny", "both"), worker_id="t", epoch="2"))
    assert leads_to(catalog) == {"tiny": "tiny"}


def test_an_alias_moves_on_when_the_older_model_ends() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny", "other"])
    directory.on_status(status(card_of("tiny", "both"), worker_id="t", epoch="1"))
    directory.on_status(status(card_of("other", "both"), worker_id="o", epoch="2"))
    assert catalog.get("both").name == "tiny"
    directory.on_status(status(card_of("tiny", "both"), worker_id="t", epoch="1", is_gone=True))
    assert catalog.get("both").name == "other"


def test_a_name_is_no_other_model_s_alias(caplog: pytest.LogCaptureFixture) -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny", "other"])
    directory.on_status(status(card_of("tiny", "other"), worker_id="t"))
    with caplog.at_level(logging.WARNING), pytest.raises(UnavailableError, match="'other' yet"):
        catalog.get("other")
    assert "'other' is announced as an alias of 'tiny', but leads to 'other'" in caplog.text
    directory.on_status(status(card_of("other"), worker_id="o", epoch="2"))
    assert catalog.get("other").name == "other"


def test_a_heartbeat_that_brings_nothing_new_changes_nothing() -> None:
    directory = WorkerDirectory()
    heard: list[Mapping[str, int]] = []
    catalog = Catalog(directory, ["tiny"], on_change=heard.append)
    directory.on_status(status(card_of("tiny", "small")))
    entries = catalog.entries
    directory.on_status(status(card_of("tiny", "small")))
    assert catalog.entries is entries
    assert len(heard) == 2


def with_adapters(card: ModelCard, **digests: bytes) -> ModelCard:
    for name, digest in digests.items():
        card.adapters.add(name=name, digest=digest)
    return card


def test_adapters_are_asked_for_behind_a_model_its_alias_or_alone() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny", "other"])
    directory.on_status(status(with_adapters(card_of("tiny", "small"), a=b"1" * 16, b=b"2" * 16)))
    directory.on_status(status(with_adapters(card_of("other"), b=b"3" * 16), worker_id="o"))
    assert list(catalog.entries) == ["tiny", "other", "small", "other:b", "tiny:a", "tiny:b"]
    for name in ("tiny:a", "small:a", "a"):
        model = catalog.get(name)
        assert (model.name, model.full_name) == ("tiny", "tiny:a")
        assert model.adapter_digest == b"1" * 16
        assert catalog.full_name(name) == "tiny:a"
    assert [catalog.full_name(name) for name in ("small", "b", "x:y")] == ["tiny", "b", "x:y"]
    assert catalog.get("other:b").adapter_digest == b"3" * 16
    assert catalog.get("tiny").adapter_digest == b""
    with pytest.raises(ModelNotFoundError, match="ask for 'other:b' or 'tiny:b'"):
        catalog.get("b")
    for name in ("tiny:c", "small:b:a", ":a"):
        with pytest.raises(ModelNotFoundError, match="does not exist here"):
            catalog.get(name)


def test_an_adapter_stays_known_while_its_model_has_no_worker() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    with pytest.raises(UnavailableError):
        catalog.get("tiny:a")
    directory.on_status(status(with_adapters(tiny_card(), a=b"1" * 16)))
    directory.on_status(status(tiny_card(), is_gone=True))
    assert catalog.get("tiny:a").adapter_digest == b"1" * 16
    directory.on_status(status(tiny_card(), epoch="2"))
    with pytest.raises(ModelNotFoundError):
        catalog.get("tiny:a")


def test_of_two_contents_under_one_name_all_gateways_take_the_same() -> None:
    directory = WorkerDirectory()
    catalog = Catalog(directory, ["tiny"])
    for worker_id, digest in (("a", b"1" * 16), ("b", b"2" * 16)):
        card = with_adapters(tiny_card(), x=digest)
        directory.on_status(status(card, worker_id=worker_id))
    assert catalog.get("x").adapter_digest == b"2" * 16
    directory.on_status(status(with_adapters(tiny_card(), x=b"1" * 16), worker_id="c"))
    assert catalog.get("x").adapter_digest == b"1" * 16  # most have that
