"""Between a request and what the gateway remembers of prefixes: what came, and what became of it.

Nothing of this fails a request, and nothing happens between its tokens.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagoda.rpc.v1.route_pb2 import Candidate, RouteResponse
from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway import metrics
from pagoda_gateway.accounts.database import comparable
from pagoda_gateway.accounts.prefixes.explanation import CacheKey, Compared, Outcome, PrefixMiss
from pagoda_gateway.accounts.prefixes.memory import Arrival
from pagoda_gateway.accounts.prefixes.outline import Outline, Part
from pagoda_gateway.accounts.prefixes.prefixes import Prefixes
from pagoda_gateway.openai.request_processor import Body
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.custom_tools import function_called
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.sequences.usage import first_sequences
from pagoda_gateway.text.tokenizer import ModelTokenizer

logger = logging.getLogger(__name__)

MAX_WATCHED = 8  # prompts of one request


@dataclass(frozen=True, slots=True)
class _Watched:
    """One prompt: the sequence that brings its first token, and what it was compared as."""

    sequence: OutputSequence
    key: CacheKey
    outline: Outline
    arrival: Arrival


class PrefixWatch:
    """The prompts of one request."""

    def __init__(
        self, prefixes: Prefixes, generation: Generation, body: Body, tokenizer: ModelTokenizer
    ) -> None:
        """Watch the prompts of a request once it has passed its limits and runs."""
        self._prefixes = prefixes
        self._generation = generation
        self._body = body
        self._tokenizer = tokenizer
        self._watched: list[_Watched] = []
        if prefixes.is_on and generation.kept_outputs is None:
            generation.meanwhile = self._begin

    def _begin(self) -> None:
        """Remember its prompts, but those that use no cache."""
        try:
            self._begin_all()
        except Exception:  # an explanation must not cost the request
            logger.exception("request %s: its prefix", self._generation.identity.request_id)

    async def settle(self, record: UsageClose) -> None:
        """Explain what missed and add it to the close record; to be called once."""
        try:
            misses = [miss for one in self._watched if (miss := await self._explained(one))]
            if misses:
                self._note(misses, record)
        except Exception:  # an explanation must not cost the account
            logger.exception("request %s: its prefix", self._generation.identity.request_id)

    def _begin_all(self) -> None:
        sequences = first_sequences(self._generation.sequences)
        for index, sequence in enumerate(sequences[:MAX_WATCHED]):
            sampling = sequence.sampling
            if not (sampling.embed or sampling.HasField("num_prompt_logprobs")):
                name = "prompt" if len(sequences) == 1 else f"prompt[{index}]"
                self._watched.append(self._begun(sequence, _outline(self._body, name)))

    def _begun(self, sequence: OutputSequence, outline: Outline) -> _Watched:
        model, prompt = self._generation.model, sequence.prompt
        key = CacheKey(
            model.full_name, model.kv_identity, model.adapter_digest.hex(), prompt.cache_root
        )
        arrival = self._prefixes.memory.arrive(
            self._generation.identity.tenant,
            key,
            prompt.token_ids,
            prompt.block_hashes,
            outline,
            lambda: sequence.cached is not None,
        )
        return _Watched(sequence, key, outline, arrival)

    async def _explained(self, one: _Watched) -> PrefixMiss | None:
        memory, tenant = self._prefixes.memory, self._generation.identity.tenant
        sequence = one.sequence
        is_computed = sequence.cached is not None
        memory.settle(tenant, one.arrival, sequence.prompt.block_hashes, is_computed=is_computed)
        if not is_computed:
            return None
        return await self._prefixes.explain(
            sequence.prompt.token_ids,
            lambda token_ids: Compared(one.key, np.asarray(token_ids, np.uint32), one.outline),
            memory.relatives(tenant, one.arrival),
            self._outcome(one),
            lambda ids: self._tokenizer.decode(ids, skip_special_tokens=False),
        )

    def _outcome(self, one: _Watched) -> Outcome:
        size, sequence = self._generation.model.block_size, one.sequence
        usable = (len(sequence.prompt.token_ids) - 1) // size  # the last token is never cached
        return Outcome(
            num_cached_tokens=sequence.num_cached_tokens,
            num_ready_tokens=size * min(one.arrival.num_ready_blocks, usable),
            num_known_tokens=size * min(one.arrival.num_known_blocks, usable),
            num_held_elsewhere_tokens=size * _num_held_elsewhere(sequence.route),
            block_size=size,
        )

    def _note(self, misses: Sequence[PrefixMiss], record: UsageClose) -> None:
        by_reason: defaultdict[tuple[str, str], list[PrefixMiss]] = defaultdict(list)
        for miss in misses:
            metrics.PREFIX_MISSED_TOKENS.labels(miss.kind).inc(miss.num_lost_tokens)
            by_reason[miss.kind, miss.place.name].append(miss)
        same = max(by_reason.values(), key=lambda group: sum(m.num_lost_tokens for m in group))
        example = max(same, key=lambda miss: miss.num_lost_tokens)
        lost = sum(miss.num_lost_tokens for miss in same)
        noted = record.prefix
        noted.kind = example.kind
        noted.num_lost_tokens = lost
        noted.num_expected_tokens = sum(miss.num_expected_tokens for miss in same)
        noted.first_token = example.first_token
        noted.place, noted.role = example.place.name, example.place.role
        noted.text, noted.earlier_text = comparable(example.text), comparable(example.earlier_text)
        identity, model = self._generation.identity, self._generation.model
        micros = None
        for name in (model.full_name, model.name):
            if micros is None:
                micros = self._prefixes.lost_micros(
                    lost, name, identity.service_tier, identity.arrived_unix_seconds
                )
        if micros is not None:
            noted.lost_micros = micros
        self._generation.span.set_attributes(
            {"pagoda.prefix.class": example.kind, "pagoda.prefix.lost_tokens": lost}
        )


def _outline(body: Body, name: str) -> Outline:
    if not isinstance(body, ChatBody):
        return Outline(name=name)
    tools = body.tools if body.tools and body.tool_choice != "none" else ()
    return Outline.of(map(_part, body.messages), (tool[tool["type"]]["name"] for tool in tools))


def _part(message: Message) -> Part:
    """Return a message's part: of one that is only calls, the first function's name."""
    content = message.content
    if isinstance(content, list):
        texts = (part.get(part.get("type")) for part in content if isinstance(part, dict))
        content = next((text for text in texts if isinstance(text, str)), "")
    text = content if isinstance(content, str) else ""
    calls = message.tool_calls or []
    if not text and calls:
        text = function_called(calls[0])["name"]
    return Part.of(message.role, text, has_calls=bool(calls))


def _num_held_elsewhere(route: RouteResponse | None) -> int:
    """Return how many leading blocks a worker had that was compared and not chosen."""
    if route is None:
        return 0
    chosen = next((c for c in route.candidates if c.is_chosen), None)
    if chosen is None:
        return 0
    others = (c for c in route.candidates if _prefiller(c) != _prefiller(chosen))
    return max((max(c.num_device_blocks, c.num_fetch_blocks) for c in others), default=0)


def _prefiller(candidate: Candidate) -> str:
    return candidate.prefill_worker_id or candidate.decode_worker_id
