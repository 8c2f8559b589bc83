"""/admin/prices."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from pagoda_gateway.admin.answers import list_answer
from pagoda_gateway.admin.money_answers import PriceList, PriceObject, price_answer
from pagoda_gateway.admin.money_bodies import NewPrice
from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Limit, admin_router

Model = Annotated[str | None, Query(max_length=512, description="List this model's alone.")]


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("prices")
    prices, bodies = gateway.money.prices, BodyReader.of(gateway)

    @router.post("", openapi_extra=described(PriceObject, body=NewPrice))
    async def create_price(request: Request) -> dict[str, Any]:
        """Set what a model costs from a moment on."""
        async with read_body(request, NewPrice, bodies) as body:
            name = gateway.catalog.full_name(body.model)
            if name != body.model:
                raise InvalidRequestError(
                    f"'model': {shorten(body.model)} stands for {shorten(name)}; set a price of "
                    "that name",
                    param="model",
                )
            row = await prices.create(
                body.model, body.rates(), valid_from_unix_seconds=body.valid_from
            )
            return price_answer(row)

    @router.get("", openapi_extra=described(PriceList))
    async def list_prices(
        model: Model = None, limit: Limit = 100, after: After = ""
    ) -> dict[str, Any]:
        """List prices that are not withdrawn, those of the past too."""
        page = await prices.page(model=model, after=after, limit=limit)
        return list_answer(page.rows, page.has_more, price_answer)

    @router.get("/{price_id}", openapi_extra=described(PriceObject))
    async def get_price(price_id: str) -> dict[str, Any]:
        """Describe one price, withdrawn or not."""
        return price_answer(await prices.records.get(price_id))

    @router.delete("/{price_id}", openapi_extra=described(PriceObject))
    async def withdraw_price(price_id: str) -> dict[str, Any]:
        """Withdraw a price that has not begun."""
        return price_answer(await prices.withdraw(price_id))

    return router
