"""/admin/ledger/reconcile: asks an applier, which knows who lives."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda.rpc.v1.usage_pb2 import ReconcileRequest, ReconcileResponse
from pagoda_gateway.admin.answers import Reconciliation
from pagoda_gateway.admin.bodies import Reconcile
from pagoda_gateway.errors import UnavailableError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import admin_router
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects

ANSWER_SECONDS = 25.0
RETRY_AFTER_SECONDS = 5.0


def make_router(gateway: Gateway) -> APIRouter:
    """Return the route."""
    router, bodies = admin_router("ledger"), BodyReader.of(gateway)

    @router.post("/reconcile", openapi_extra=described(Reconciliation, body=Reconcile))
    async def reconcile(request: Request) -> dict[str, Any]:
        """Close what gateways that are gone left open, from what they noted and workers say."""
        async with read_body(request, Reconcile, bodies) as body:
            asked = ReconcileRequest(gone_seconds=body.gone_seconds)
        try:
            answer = await gateway.bus.request(
                subjects.LEDGER_RECONCILE, asked, ReconcileResponse, timeout_seconds=ANSWER_SECONDS
            )
        except BusError as error:
            raise UnavailableError(
                f"no applier has done it ({error}): see whether one runs, and what its log says",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from error
        return Reconciliation(
            reconciled=answer.num_reconciled,
            lost=answer.num_lost,
            open=answer.num_open,
            unbegun=answer.num_unbegun,
        ).model_dump()

    return router
