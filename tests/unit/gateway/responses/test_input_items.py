"""Which items a page has, and how it shows them."""

from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.responses.input_items import item_page, with_ids, without_turn


def make_items(num: int) -> list[dict[str, Any]]:
    sent = [{"role": "user", "content": f"text {i}"} for i in range(num)]
    return with_ids([], sent, "resp_r")


def ids_of(page: dict[str, Any]) -> list[str]:
    return [item["id"] for item in page["data"]]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 7, 8])
def test_pages_follow_each_other(order: Any, limit: int) -> None:
    items = make_items(7)
    found: list[str] = []
    after, has_more = None, True
    while has_more:
        page = item_page(items, limit=limit, after=after, order=order)
        assert (page["first_id"], page["last_id"]) == (ids_of(page)[0], ids_of(page)[-1])
        found += ids_of(page)
        after, has_more = page["last_id"], page["has_more"]
    expected = [item["id"] for item in items]
    assert found == (expected if order == "asc" else expected[::-1])


def test_after_the_last_there_is_nothing() -> None:
    items = make_items(2)
    page = item_page(items, limit=5, after=items[-1]["id"], order="asc")
    assert page == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


def test_an_unknown_id_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"'after' is .*msg_x") as caught:
        item_page(make_items(2), limit=5, after="msg_x", order="asc")
    assert caught.value.param == "after"


def test_ids_are_the_clients_own_unless_they_come_twice() -> None:
    previous = with_ids([], [{"role": "user", "content": "a", "id": "mine"}], "resp_1")
    assert previous[0]["id"] == "mine"
    more = with_ids(
        previous,
        [
            {"role": "user", "content": "b", "id": "mine"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": 5},
            {"type": "function_call_output", "call_id": "c", "output": "1", "id": ""},
            {"type": "reasoning"},
        ],
        "resp_2",
    )
    assert [item["id"] for item in more] == ["msg_2_in0", "fc_2_in1", "fco_2_in2", "rs_2_in3"]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (
            {"role": "assistant", "content": "a", "status": 5},
            {
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
                ],
            },
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "more": 1}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
            },
        ),
        (
            {"type": "reasoning", "summary": ["odd", {"text": 5}], "content": [{"text": "hm"}]},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
        ),
        (
            {"type": "reasoning", "encrypted_content": "x"},
            {"type": "reasoning", "summary": [], "content": [], "encrypted_content": "x"},
        ),
        (
            {"type": "reasoning", "encrypted_content": 5},
            {"type": "reasoning", "summary": [], "content": []},
        ),
    ],
)
def test_items_are_shown_with_every_field(sent: dict[str, Any], shown: dict[str, Any]) -> None:
    (item,) = with_ids([], [sent], "resp_r")
    (found,) = item_page([item], limit=1, after=None, order="asc")["data"]
    assert found == {"id": item["id"], "status": "completed", **shown}


def test_a_turn_is_taken_out_and_nothing_beside_it() -> None:
    before = make_items(2)
    asked = [{"role": "user", "content": "a", "id": item_id} for item_id in ("", "mine", "mine")]
    answered = [{"type": "message", "id": f"msg_req_1_{index}"} for index in range(2)]
    turn = [*with_ids(before, asked, "resp_req_1", keeps_ids=False), *answered]
    after = with_ids([*before, *turn], [{"role": "user", "content": "b"}], "resp_req_11")
    for deleted in [*turn, None]:
        left = [item for item in turn if item != deleted]
        items = [*before, *left, *after]
        assert without_turn(items, "resp_req_1") == [*before, *after]
        assert without_turn(items, "resp_req_2") == items
