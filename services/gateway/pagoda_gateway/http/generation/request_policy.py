"""One request under its tenant's policy, on its way through the handler."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from starlette.types import Scope

from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.openai.request_processor import ProcessedRequest
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.response_cache.key import answer_key
from pagoda_gateway.safety.output_guard import OutputGuard
from pagoda_gateway.safety.request_safety import RequestSafety
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.served_model import ServedModel

CACHE_HEADER = "x-pagoda-cache"

Body = TypeVar("Body", bound=GenerationBody)
_SCOPE_NAME = "pagoda.cache"


class RequestPolicy:
    """What the handler and the response ask where the tenant has a policy for the model."""

    def __init__(self, gateway: Gateway, model: ServedModel, safety: RequestSafety) -> None:
        self._gateway = gateway
        self._model = model
        self._prompts = gateway.texts[model.name].prompts
        self._safety = safety
        self._key: str | None = None  # of the answer, if it may be kept

    @classmethod
    def of(cls, gateway: Gateway, tenant: str, model: ServedModel) -> "RequestPolicy | None":
        """Return what applies to a tenant's request; None: nothing."""
        policy = gateway.policies.of(tenant, model.name)
        if policy is None:
            return None
        safety = RequestSafety(policy, partial(gateway.policies.large.apart, tenant))
        return cls(gateway, model, safety)

    async def checked(self, body: Body) -> Body:
        """See `RequestSafety.checked`."""

        async def text_of(token_ids: Sequence[int]) -> str:
            self._model.check_token_ids(token_ids, param=body.prompt_field)
            return await self._prompts.text_of(token_ids)

        return await self._safety.checked(body, text_of, self._prompts.tokenizer.normalize)

    async def see_cut(self, processed: ProcessedRequest) -> None:
        """See `RequestSafety.see_cut`."""
        if processed.cut_prompts:
            texts = [await self._prompts.text_of(ids) for ids in processed.cut_prompts]
            await self._safety.see_cut(texts)

    @property
    def judge(self) -> Callable[[], Awaitable[None]] | None:
        """What asks the moderators about the prompt: see `RequestSafety.judge`; None: none is."""
        return None if self._safety.is_judged else self._safety.judge

    def guarded(self, processed: ProcessedRequest) -> ProcessedRequest:
        """See `RequestSafety.guarded`."""
        return self._safety.guarded(processed)

    def guard(self, index: int) -> OutputGuard | None:
        """See `RequestSafety.guard`."""
        return self._safety.guard(index)

    def look_up(
        self, generation: Generation, processed: ProcessedRequest, scope: Scope, *, is_seeded: bool
    ) -> None:
        """Let the generation take the answer of an equal request, if there is one."""
        if self._safety.policy.response_cache is None:
            return
        identity = generation.identity
        key = self._key = answer_key(identity, self._model, processed, is_seeded=is_seeded)
        if key is not None:
            generation.kept_outputs = self._gateway.response_cache.get(identity.tenant, key)
            scope[_SCOPE_NAME] = "miss" if generation.kept_outputs is None else "hit"

    def complete(self, generation: Generation, record: UsageClose) -> None:
        """Say in an account what rules have found, and whether the answer was kept."""
        record.safety_findings.extend(self._safety.findings.names)
        record.is_cached_answer = generation.kept_outputs is not None

    def settle(self, generation: Generation, record: UsageClose) -> None:
        """Complete the account of a generation that is over, and keep its answer."""
        self.complete(generation, record)
        cache = self._safety.policy.response_cache
        if cache is None or self._key is None or record.is_cached_answer:
            return
        if record.outcome == "finished":
            self._gateway.response_cache.put(self._key, generation, ttl_seconds=cache.ttl_seconds)


def cache_of(scope: Scope) -> str:
    """Return what the cache's header says; empty: nothing."""
    said: str = scope.get(_SCOPE_NAME, "")
    return said
