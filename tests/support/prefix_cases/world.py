"""Workers that keep what they compute, and what the gateway explains of a request to them."""

from collections import defaultdict

from pagoda_gateway.accounts.prefixes.explanation import Compared, Outcome, PrefixMiss, explain
from pagoda_gateway.accounts.prefixes.memory import Arrival, PrefixMemory
from support.prefix_cases.case import NOTHING, Case
from support.prefix_cases.prompts import prompt_of, template
from support.prefix_cases.requests import Asked

TENANT = "t"


class World:
    """One tenant's requests, one after the other, on workers that keep what they compute."""

    def __init__(self, block_size: int) -> None:
        self.memory = PrefixMemory(max_bytes=1 << 26, max_tenant_bytes=1 << 24)
        self._size = block_size
        self._cached: defaultdict[bytes, set[bytes]] = defaultdict(set)

    def ask(self, asked: Asked, *, is_computing: bool = False) -> None:
        """Serve a request."""
        prompt, hashes = prompt_of(asked, self._size)
        arrival = self._arrive(prompt, hashes, is_computing=is_computing)
        if not is_computing:
            self.memory.settle(TENANT, arrival, hashes, is_computed=True)
            self._cached[prompt.key.root].update(hashes)

    def keep(self, asked: Asked, share: float) -> None:
        """Evict a request's blocks but for this share of them, at the beginning."""
        prompt, hashes = prompt_of(asked, self._size)
        self._cached[prompt.key.root] -= set(hashes[int(share * len(hashes)) :])

    def explain(self, asked: Asked, *, is_held_elsewhere: bool = False) -> PrefixMiss | None:
        """Serve a request and return why it missed."""
        prompt, hashes = prompt_of(asked, self._size)
        arrival = self._arrive(prompt, hashes, is_computing=True)
        usable = (len(prompt.token_ids) - 1) // self._size
        held = self._cached[prompt.key.root]
        run = next((i for i, h in enumerate(hashes) if h not in held), len(hashes))
        known = self._size * min(arrival.num_known_blocks, usable)
        return explain(
            prompt,
            self.memory.relatives(TENANT, arrival),
            Outcome(
                num_cached_tokens=self._size * min(run, usable),
                num_ready_tokens=self._size * min(arrival.num_ready_blocks, usable),
                num_known_tokens=known,
                num_held_elsewhere_tokens=known if is_held_elsewhere else 0,
                block_size=self._size,
            ),
            lambda ids: template()[1].decode(ids, skip_special_tokens=False),
        )

    def _arrive(
        self, prompt: Compared, hashes: tuple[bytes, ...], *, is_computing: bool
    ) -> Arrival:
        return self.memory.arrive(
            TENANT,
            prompt.key,
            tuple(prompt.token_ids.tolist()),
            hashes,
            prompt.outline,
            lambda: not is_computing,
        )


def found_in(case: Case, background: tuple[Asked, ...] = ()) -> str:
    """Return the class that is found for a case, after requests that have nothing to do with it."""
    world = World(case.block_size)
    for asked in background:
        world.ask(asked)
    for asked in case.before:
        world.ask(asked, is_computing=case.is_computing)
        if case.kept_share < 1:
            world.keep(asked, case.kept_share)
    miss = world.explain(case.now, is_held_elsewhere=case.is_held_elsewhere)
    return NOTHING if miss is None else miss.kind
