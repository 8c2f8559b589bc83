"""/v1/files: what batches are made of, and what they make."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from pagoda_gateway.batches.objects import file_object, list_object
from pagoda_gateway.batches.schemas import DeletedFile, FileList, FileObject
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.batches.upload import upload
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.database_route import DatabaseRoute

PATH = "/v1/files"
_MEDIA_TYPE = "application/octet-stream"
_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"enum": ["batch"]},
                    "expires_after[anchor]": {"enum": ["created_at"]},
                    "expires_after[seconds]": {"type": "integer"},
                },
            }
        }
    },
}
_BYTES = {"type": "string", "format": "binary"}
_CONTENT = {"responses": {"200": {"content": {_MEDIA_TYPE: {"schema": _BYTES}}}}}


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["files"], route_class=DatabaseRoute)
    files = gateway.files

    @router.post(PATH, openapi_extra=described(FileObject) | {"requestBody": _FORM})
    async def create_file(request: Request) -> dict[str, Any]:
        """Keep an input file."""
        return file_object(await upload(gateway, request, caller_of(request).key.tenant))

    @router.get(PATH, openapi_extra=described(FileList))
    async def list_files(
        request: Request,
        purpose: Literal["batch", "batch_output"] | None = None,
        after: Annotated[str | None, Query(max_length=64, pattern="^file-")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        """List the tenant's files; `after` is the last id of the page before."""
        rows = await files.list_files(
            caller_of(request).key.tenant, purpose=purpose, after=after, limit=limit, order=order
        )
        return list_object(rows, limit, file_object)

    @router.get(f"{PATH}/{{file_id}}", openapi_extra=described(FileObject))
    async def get_file(file_id: str, request: Request) -> dict[str, Any]:
        """Describe one file."""
        return file_object(await files.get(caller_of(request).key.tenant, file_id))

    @router.delete(f"{PATH}/{{file_id}}", openapi_extra=described(DeletedFile))
    async def delete_file(file_id: str, request: Request) -> dict[str, Any]:
        """Delete a file that no batch is at work on."""
        await files.delete(caller_of(request).key.tenant, file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    @router.get(f"{PATH}/{{file_id}}/content", response_model=None, openapi_extra=_CONTENT)
    async def get_content(file_id: str, request: Request) -> Response:
        """Return what is in a file."""
        file = await files.get(caller_of(request).key.tenant, file_id)
        headers = {"content-length": str(file["num_bytes"])}
        return StreamingResponse(files.content(file), media_type=_MEDIA_TYPE, headers=headers)

    return router
