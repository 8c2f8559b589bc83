"""The size of the KV pool and the longest sequence: from the options and the memory there is.

Refuses what cannot work, with the arithmetic and the options to change. Knows no torch.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import NoReturn

from pagoda_engine.errors import MemoryBudgetError
from pagoda_engine.start_up.host_memory import MIN_POOL_BYTES
from pagoda_engine.start_up.memory_budget import KvPool, MemoryBudget, format_bytes
from pagoda_engine.start_up.options import EngineOptions


class PoolPlanner:
    """One engine's choice; asked before the weights are read, and again once all is measured."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        block_bytes: int,
        model_limit: int,
        default_bytes: int = MIN_POOL_BYTES,
        draft_block_bytes: int = 0,
        longest_table: Callable[[int], int] = lambda num_blocks: num_blocks,
    ) -> None:
        """Take what does not depend on measurements.

        Args:
            options: of the start.
            block_bytes: of one KV block, all layers.
            model_limit: tokens of the longest sequence that the model was made for.
            default_bytes: of a pool on a CPU whose size nobody set, see `host_memory`.
            draft_block_bytes: of as many tokens' KV of a draft model, which has a pool of as many
                blocks beside this one; 0: there is none.
            longest_table: blocks of a pool -> those that one sequence can have, if they lose parts
                as it goes on; never fewer.
        """
        self._longest_table = longest_table
        self._draft_block_bytes = draft_block_bytes
        self._default_bytes = default_bytes
        self._options = options
        self._block_bytes = block_bytes
        self._limit = min(options.max_model_len or model_limit, model_limit)

    def plan(
        self,
        budget: MemoryBudget | None,
        host_bytes: int | None = None,
        limit_bytes: int | None = None,
    ) -> KvPool:
        """Return the pool.

        Args:
            budget: of the device; None where memory is not shared out: on a CPU.
            host_bytes: what a pool on a CPU can take at most; None: unknown.
            limit_bytes: what a limit leaves for it, beyond which the process is killed; below 0 if
                it leaves too little for the weights. None: there is none.

        Raises:
            MemoryBudgetError: no block fits, or not the longest sequence that the options name; or
                they name a larger pool than the memory holds; or a limit leaves no room for it.
        """
        options = self._options
        if options.num_blocks:
            num_blocks = options.num_blocks
        elif options.kv_cache_bytes or budget is None:
            num_blocks = (options.kv_cache_bytes or self._default_bytes) // self._block_bytes
        else:
            num_blocks = budget.pool_bytes // (self._block_bytes + self._draft_block_bytes)
        pool = KvPool(num_blocks, self._block_bytes, options.block_size)
        num_bytes = num_blocks * (self._block_bytes + self._draft_block_bytes)
        if num_blocks < 1:
            self._refuse("there is no room for a KV block", pool, budget)
        if budget is not None and num_bytes > budget.free_pool_bytes:
            self._refuse(
                f"there is no room for a KV pool of {format_bytes(num_bytes)}", pool, budget
            )
        if budget is None and (options.num_blocks or options.kv_cache_bytes):
            self._check_host(pool, num_bytes, host_bytes)
        if self._longest(pool) < self._required_tokens:
            self._refuse(
                f"there is no room for one sequence of max_model_len {self._limit} tokens",
                pool,
                budget,
            )
        if budget is None and limit_bytes is not None and num_bytes > limit_bytes:
            self._refuse_by_limit(pool, num_bytes, limit_bytes)
        return pool

    def max_model_len(self, pool: KvPool) -> int:
        """Return the limit of a sequence; one that nobody set is lowered to what fits."""
        return min(self._limit, self._longest(pool))

    def explain(self, pool: KvPool, budget: MemoryBudget | None) -> str:
        """Return the arithmetic that led to the pool."""
        lines = [] if budget is None else [budget.explain()]
        if budget is None and not (self._options.num_blocks or self._options.kv_cache_bytes):
            lines.append(
                f"KV pool of {format_bytes(self._default_bytes)}, as nobody set its size: for one "
                f"sequence of {self._limit} tokens, within 1/8 of the memory left beside the "
                f"weights, and {format_bytes(MIN_POOL_BYTES)} at least, or 1/4 of that memory if "
                "it is less"
            )
        lines.append(pool.explain(self._limit))
        if (longest := self._longest(pool)) > pool.num_tokens:
            lines.append(
                f"one sequence can have {longest} tokens: layers with windows keep what they see"
            )
        if self._draft_block_bytes:
            size = format_bytes(pool.num_blocks * self._draft_block_bytes)
            token_kib = self._draft_block_bytes / pool.block_size / 1024
            lines.append(f"KV of the draft model beside it {size}: {token_kib:g} KiB per token")
        return "\n".join(lines)

    def _longest(self, pool: KvPool) -> int:
        """Return the most tokens that a sequence can have."""
        return self._longest_table(pool.num_blocks) * pool.block_size

    def step_remedies(self, largest_step: str) -> list[str]:
        """Return what makes the largest step smaller."""
        return [f"lower `max_num_batched_tokens` or `max_num_seqs` ({largest_step})"]

    @property
    def _required_tokens(self) -> int:
        """Tokens of a sequence for which there must be room: as many as were asked for."""
        return self._limit if self._options.max_model_len else 1

    def _check_host(self, pool: KvPool, num_bytes: int, host_bytes: int | None) -> None:
        """Refuse a pool that would be taken block by block, until the system ends the process."""
        if host_bytes is None or num_bytes <= host_bytes:
            return
        name, unit = (
            ("`num_blocks`", self._block_bytes + self._draft_block_bytes)
            if self._options.num_blocks
            else ("`kv_cache_bytes`", 1)
        )
        raise MemoryBudgetError(
            f"there is no room for a KV pool of {format_bytes(num_bytes)}: the host has "
            f"{format_bytes(host_bytes)} left",
            self.explain(pool, None),
            [f"lower {name} to {host_bytes // unit} or less", f"unset {name}"],
        )

    def _refuse_by_limit(self, pool: KvPool, num_bytes: int, limit_bytes: int) -> NoReturn:
        """Refuse what would start, and be killed without a word as its blocks are used."""
        options, remedies = self._options, []
        block_bytes = self._block_bytes + self._draft_block_bytes
        if (num_blocks := limit_bytes // block_bytes) > 0:
            if options.num_blocks:
                remedies.append(f"lower `num_blocks` to {num_blocks} or less")
            else:
                size = num_blocks * self._block_bytes
                verb = "lower" if options.kv_cache_bytes else "set"
                remedies.append(f"{verb} `kv_cache_bytes` to {size} or less")
            if options.max_model_len and self._longest_table(num_blocks) < (
                -(-self._limit // pool.block_size)
            ):
                most = self._longest_table(num_blocks) * pool.block_size
                remedies.append(f"lower `max_model_len` to {most} or less")
        left = format_bytes(limit_bytes) if limit_bytes > 0 else "nothing"
        raise MemoryBudgetError(
            f"there is no room for a KV pool of {format_bytes(num_bytes)}: the memory limit of "
            f"this container or control group leaves {left} beside the weights",
            self.explain(pool, None),
            [
                *remedies,
                "raise the limit (PAGODA_PREFILL_MEM_LIMIT, PAGODA_DECODE_MEM_LIMIT of "
                "compose.yaml)",
                "take a smaller model",
            ],
        )

    def _refuse(self, reason: str, pool: KvPool, budget: MemoryBudget | None) -> NoReturn:
        num_blocks = -(-self._required_tokens // pool.block_size)
        num_blocks = bisect_left(range(num_blocks), num_blocks, key=self._longest_table)
        needed = num_blocks * self._block_bytes
        if self._draft_block_bytes and budget is not None:
            needed += needed // self._block_bytes * self._draft_block_bytes
        remedies = self._pool_remedies(needed, budget)
        if 0 < self._longest(pool) < self._required_tokens:
            remedies.append(f"lower `max_model_len` to {self._longest(pool)} or less")
        if budget is not None:
            remedies += self._device_remedies(needed, budget)
        raise MemoryBudgetError(reason, self.explain(pool, budget), remedies)

    def _pool_remedies(self, needed: int, budget: MemoryBudget | None) -> list[str]:
        options = self._options
        if budget is not None and (options.num_blocks or options.kv_cache_bytes):
            name = "`num_blocks`" if options.num_blocks else "`kv_cache_bytes`"
            return [f"unset {name}, so that the pool takes what is left"]
        if options.num_blocks:
            return [f"raise `num_blocks` to {needed // self._block_bytes} or more"]
        if budget is None:
            return [f"raise `kv_cache_bytes` to {needed} or more"]
        share = math.ceil(budget.utilization_for(needed) * 100) / 100
        if budget.utilization < share <= 1:
            now = f"{budget.utilization:g}"
            return [f"raise `gpu_memory_utilization` from {now} to {share:g} or more"]
        return []

    def _device_remedies(self, needed: int, budget: MemoryBudget) -> list[str]:
        remedies = []
        if needed > budget.free_pool_bytes and budget.neighbour_bytes:
            remedies.append(
                f"give its neighbours on {budget.device} less than the "
                f"{format_bytes(budget.neighbour_bytes)} they hold"
            )
        if budget.activation_bytes:
            remedies += self.step_remedies(budget.largest_step)
        return [*remedies, "take a device with more memory, or a smaller model"]
