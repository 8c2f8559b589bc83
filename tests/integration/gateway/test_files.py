"""/v1/files by the official client and by hand."""

from collections.abc import AsyncIterator, Iterator
from itertools import repeat

import openai
import pytest
from pydantic import SecretStr
from support.postgres import Postgres
from support.running_gateway import API_KEY, Running, Start

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_a_file_comes_back_byte_by_byte(running: Running) -> None:
    data = bytes(range(256)) * 3000  # three chunks, with whatever a boundary may be made of
    async with running.sdk() as client:
        file = await client.files.create(file=("in.jsonl", data), purpose="batch")
        assert (file.filename, file.bytes, file.purpose) == ("in.jsonl", len(data), "batch")
        assert file.expires_at == file.created_at + 30 * 86_400
        assert (await client.files.content(file.id)).content == data
        assert (await client.files.retrieve(file.id)) == file
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)


async def test_expiry_is_the_clients_own(running: Running) -> None:
    async with running.sdk() as client:
        file = await client.files.create(
            file=b"{}", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert file.expires_at == file.created_at + 3600
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            await client.files.create(
                file=b"{}", purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
            )


async def test_pages_have_every_file_once(running: Running) -> None:
    async with running.sdk() as client:
        made = [(await client.files.create(file=b"{}", purpose="batch")).id for _ in range(5)]
        pages = client.files.list(limit=2, purpose="batch", order="desc")
        seen = [file.id async for file in pages if file.id in made]
        assert seen == sorted(made, reverse=True)
        page = await client.files.list(limit=2, order="asc")
        assert page.has_more


async def test_other_purposes_are_refused(running: Running) -> None:
    async with running.sdk() as client:
        with pytest.raises(openai.BadRequestError, match="purpose") as caught:
            await client.files.create(file=b"{}", purpose="fine-tune")
    assert caught.value.param == "purpose"


async def test_forms_that_are_none(running: Running) -> None:
    json = await running.http.post("/v1/files", json={"purpose": "batch"})
    assert json.status_code == 415
    empty = await running.http.post("/v1/files", data={"purpose": "batch"}, files={"other": b"x"})
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "file")
    cut = await running.http.post(
        "/v1/files",
        content=b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nabc',
        headers={"content-type": "multipart/form-data; boundary=b"},
    )
    assert cut.status_code == 400
    long = await running.http.post(
        "/v1/files",
        content=b"--b",
        headers={"content-type": "multipart/form-data; boundary=" + "B" * 30_000},
    )
    assert long.status_code == 400
    assert "the form's boundary is not usable" in long.json()["error"]["message"]
    assert running.gateway.bodies.num_held_bytes == 0


async def test_limits_of_a_file_and_of_a_tenant(start: Start) -> None:
    limits = {"max_file_bytes": 400_000, "tenant_file_bytes": 1_000_000}
    async with start(**limits) as running, running.sdk() as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.files.create(file=b"x" * 400_001, purpose="batch")
        assert caught.value.status_code == 413
        kept = [await client.files.create(file=b"x" * 400_000, purpose="batch") for _ in range(2)]
        with pytest.raises(openai.BadRequestError, match="1000000") as full:
            await client.files.create(file=b"x" * 400_000, purpose="batch")
        assert full.value.code == "storage_limit_exceeded"
        await client.files.delete(kept[0].id)
        await client.files.create(file=b"x" * 400_000, purpose="batch")
        assert len((await client.files.list()).data) == 2


@pytest.mark.parametrize("place", ["before", "behind"])
async def test_a_form_ends_whatever_is_around_it(start: Start, place: str) -> None:
    def form() -> Iterator[bytes]:
        around = repeat(b"\r\n" * 50_000, 10)
        head = b'Content-Disposition: form-data; name="%b"\r\n\r\n%b\r\n--b'
        if place == "before":
            yield from around
        yield b"--b\r\n" + head % (b"purpose", b"batch") + b"\r\n" + head % (b"file", b"{}")
        yield b"--\r\n"
        if place == "behind":
            yield from around

    async with start(max_file_bytes=400_000) as running:
        answer = await running.http.post(
            "/v1/files",
            content=_sent(form()),
            headers={"content-type": "multipart/form-data; boundary=b"},
        )
        assert answer.status_code == 413, answer.text
        assert (await running.http.get("/v1/files")).json()["data"] == []


async def _sent(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_another_tenants_files_do_not_exist(running: Running) -> None:
    _, secret = await running.gateway.tenancy.api_keys.ensure("other", "theirs")
    async with running.sdk() as mine, running.sdk().with_options(api_key=secret) as theirs:
        file = await mine.files.create(file=b"{}", purpose="batch")
        assert secret != API_KEY
        for ask in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(file.id)
        assert file.id not in [item.id async for item in theirs.files.list()]
        with pytest.raises(openai.BadRequestError, match="no file"):
            await theirs.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )


async def test_a_database_that_is_gone_is_a_503_for_files_and_batches(
    start: Start, postgres: Postgres
) -> None:
    url = postgres.new_database()
    batch = {"endpoint": "/v1/completions", "completion_window": "24h"}
    async with start(ledger_url=SecretStr(url)) as running, running.sdk() as client:
        file = await client.files.create(file=b"{}", purpose="batch")
        batch["input_file_id"] = file.id
        form = {"files": {"file": b"{}"}, "data": {"purpose": "batch"}}
        postgres.shut_out(url)
        refused = [
            await running.http.post("/v1/files", **form),
            await running.http.get("/v1/files"),
            await running.http.get(f"/v1/files/{file.id}/content"),
            await running.http.delete(f"/v1/files/{file.id}"),
            await running.http.post("/v1/batches", json=batch),
            await running.http.get("/v1/batches"),
        ]
        postgres.let_in(url)
        assert (await running.http.post("/v1/batches", json=batch)).status_code == 200
    assert [answer.status_code for answer in refused] == [503] * len(refused)
    assert {answer.headers["retry-after"] for answer in refused} == {"2"}
    assert running.gateway.bodies.num_held_bytes == 0
