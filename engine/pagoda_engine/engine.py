"""The engine: takes sequences, computes them step by step, and says what each step changed.

Ties the scheduler, the KV blocks, the model and the sampler together. Knows no network and no text.
"""

import time
from collections.abc import Callable, Iterable

import torch

from pagoda_engine.adapters.adapter import Adapter
from pagoda_engine.adapters.adapter_table import AdapterTable
from pagoda_engine.cache.block_pool import BlockPool, OnEvict
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.config import EngineConfig
from pagoda_engine.device import DeviceQueue, GraphCapture, device_parts
from pagoda_engine.drafting.drafter import Drafter
from pagoda_engine.engine_load import EngineLoad
from pagoda_engine.errors import (
    AdapterNotLoadedError,
    InvalidSequenceError,
    NoAdapterSlotError,
    QueueFullError,
    SequenceStateError,
)
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.new_sequence import new_sequence
from pagoda_engine.scheduler.proposing.drafts import Drafts
from pagoda_engine.scheduler.proposing.speculator import Speculator
from pagoda_engine.scheduler.rest import SharedProcessors, rest_after
from pagoda_engine.scheduler.resumption import MatchLower
from pagoda_engine.scheduler.scheduler import Scheduler
from pagoda_engine.scheduler.sequence import NO_ADAPTER, Sequence, SequenceState, flow_of
from pagoda_engine.scheduler.sequence_blocks import BlockHasher, SequenceBlocks
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.sequence_request import SequenceRequest
from pagoda_engine.speculation import TenantOutputs
from pagoda_engine.step.decode_graphs import Progress
from pagoda_engine.step.layer_export import LayerExport, OnLayers
from pagoda_engine.step.newcomers import Newcomers
from pagoda_engine.step.outputs import final_output, take_tokens
from pagoda_engine.step.result import (
    ComputedBlocks,
    FinishReason,
    Reservation,
    SequenceOutput,
    StepResult,
    StepStats,
)
from pagoda_engine.step.runner import Runner
from pagoda_engine.step.steps_in_flight import StepsInFlight
from pagoda_engine.validation import check_config, check_import, check_request


class Engine:
    """One model, one pool of KV blocks, one step after another.

    Where the device works on its own, a step is launched before the tokens of the step before are
    read: the device never waits for the host. What a stop token ends has by then cost one row of
    one more step, whose token nobody sees.

    Not thread-safe: the thread that runs the step loop makes every call, except for `announce`, and
    for reads and writes of ``kv_cache``, which any thread may make for blocks that it was given.

    Attributes:
        model: as given.
        config: as given.
        kv_cache: bytes of the blocks.
        max_model_len: the smaller of the configuration's and the model's.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        *,
        hash_block: BlockHasher,
        on_evict: OnEvict | None = None,
        on_layers: OnLayers | None = None,
        clock: Callable[[], float] = time.perf_counter,
        kv_cache: KvCache | None = None,
        queue: DeviceQueue | None = None,
        graph_capture: GraphCapture | None = None,
        shared_processors: SharedProcessors | None = None,
        adapters: AdapterTable | None = None,
        draft: LoadedModel | None = None,
    ) -> None:
        """Allocate all KV blocks, unless they are given.

        Args:
            model: its device is the engine's, whatever ``config.device`` says.
            config: limits.
            hash_block: (parent hash, token ids of one block) -> 16 bytes; must be what hashed the
                requests.
            on_evict: called in the step's thread with (block hash, block id) before the block is
                overwritten.
            on_layers: called in the step's thread with KV of ``prefill_only`` sequences after each
                of ``config.num_layer_groups`` parts of a forward was launched, except the last.
            clock: seconds, for StepStats.
            kv_cache: of ``config.num_blocks`` blocks in this model's layout.
            queue: to the model's device; None for its usual one.
            graph_capture: for the same device; None for its usual one, if it has one.
            shared_processors: None: nobody else is known to use them.
            adapters: of the model's decoder, and of this engine alone; None: it can load none.
            draft: a model of the same tokens, which proposes tokens too where speculation is on; it
                gets KV of its own, as many blocks as there are of the model's.

        Raises:
            InvalidConfigError: a limit is out of range.
        """
        check_config(config)
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        self.config = config
        self.max_model_len = min(config.max_model_len, model.decoder.max_positions)
        self.model = model
        self._adapters = adapters
        self._clock = clock
        if kv_cache is None:
            kv_cache = KvCache(model.kv_layout(config.block_size), config.num_blocks, model.device)
        self.kv_cache = kv_cache
        groups = kv_cache.layout.groups
        self._pool = BlockPool(
            config.num_blocks, on_evict=on_evict, part_places=kv_cache.part_places
        )
        self._blocks = SequenceBlocks(
            self._pool,
            block_size=config.block_size,
            hash_block=hash_block,
            enable_prefix_caching=config.enable_prefix_caching,
            window=model.description.kv_window,
            part_window=None if groups is None else groups.window,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self._queue, graph_capture = device_parts(
            model.device,
            queue,
            graph_capture,
            enforce_eager=config.enforce_eager,
            clock=clock,
        )
        overlaps = self._queue.lag > 0
        self._drafter: Drafter | None = None
        speculator = None
        if config.speculation != "off":
            drafts = None
            if draft is not None:
                self._drafter = Drafter(
                    draft,
                    num_blocks=config.num_blocks,
                    block_size=config.block_size,
                    vocab_size=model.vocab_size,
                    preparing=self._queue.preparing,
                    clock=clock,
                    lanes=kv_cache.lanes,
                )
                drafts = Drafts(self._drafter, config.num_speculative_tokens, overlaps=overlaps)
            speculator = Speculator(
                config.num_speculative_tokens,
                overlaps=overlaps,
                outputs=TenantOutputs(config.speculation_output_bytes),
                drafts=drafts,
            )
        self._scheduler = Scheduler(config, self._blocks, speculator)
        with self._queue.preparing():
            self._runner = Runner(
                model,
                kv_cache,
                config,
                capture=graph_capture,
                max_model_len=self.max_model_len,
                overlaps=overlaps,
            )
        layer_export = None
        if on_layers is not None and config.num_layer_groups > 1 and groups is None:
            layer_export = LayerExport(
                on_layers,
                self._blocks,
                num_layers=kv_cache.num_layers,
                num_groups=config.num_layer_groups,
            )
        self._newcomers = Newcomers(clock)
        self._steps = StepsInFlight(
            self._scheduler,
            model,
            self._runner,
            self._queue,
            drafter=self._drafter,
            layer_export=layer_export,
            newcomers=self._newcomers,
            clock=clock,
        )
        self._shared_processors = shared_processors
        self._last_step = (0.0, 0.0)  # its begin and end, by the clock
        self._num_arrivals = 0
        self._pending_outputs: list[SequenceOutput] = []

    @property
    def drafter(self) -> Drafter | None:
        """What proposes tokens by a draft model; None: nothing does."""
        return self._drafter

    def capture(self, progress: Progress = lambda done, total: None) -> None:
        """Capture the device's graphs, if it has any. Call before the first step.

        Args:
            progress: called with (graphs captured, graphs in all).
        """
        self._runner.capture(progress)

    @property
    def layout(self) -> str:
        """What two engines must agree on, beside the fingerprint, before they swap blocks."""
        return self.kv_cache.layout.name

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, reusable cached ones included."""
        return self._pool.num_free_blocks

    def announce(self, request: SequenceRequest) -> None:
        """Say that `add` will follow soon; any thread may.

        A large step of others is given up for it, where it would have to wait for that one's end.
        """
        self._newcomers.announce(request.sequence_id, flow_of(request))

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence.

        Raises:
            InvalidSequenceError: it can never be served.
            AdapterNotLoadedError: its adapter is not loaded, or was unloaded.
            QueueFullError: too many wait already.
        """
        self._newcomers.take(request.sequence_id)
        if self._scheduler.get(request.sequence_id) is not None:
            raise InvalidSequenceError("sequence_id", request.sequence_id, "unique in the engine")
        check_request(
            request,
            self.config,
            max_model_len=self.max_model_len,
            vocab_size=self.model.vocab_size,
            groups=self.kv_cache.layout.groups,
        )
        adapter_slot = self._adapter_slot(request.adapter)
        # Who lost its blocks has been let in before.
        num_waiting = sum(not sequence.was_reserved for sequence in self._scheduler.waiting)
        if num_waiting >= self.config.max_num_waiting:
            raise QueueFullError(num_waiting, self.config.max_num_waiting)
        self._num_arrivals += 1
        self._scheduler.add(
            new_sequence(
                request,
                self._num_arrivals,
                max_model_len=self.max_model_len,
                eos_token_ids=self.model.eos_token_ids,
                adapter_slot=adapter_slot,
            )
        )

    @property
    def adapters(self) -> frozenset[bytes]:
        """Digests of the adapters that a sequence may name."""
        return frozenset() if self._adapters is None else self._adapters.digests

    @property
    def max_adapter_rank(self) -> int:
        """Rank of an adapter at most; 0: none can be loaded."""
        return 0 if self._adapters is None else self._adapters.slots.max_rank

    def load_adapter(self, adapter: Adapter) -> None:
        """Let sequences name an adapter; what is loaded already is not loaded again.

        Args:
            adapter: read for this model (see `read_adapter`), of `max_adapter_rank` at most.

        Raises:
            NoAdapterSlotError: there is no room for it.
        """
        if self._adapters is None:
            raise NoAdapterSlotError(0, 0)
        with self._queue.preparing():
            self._adapters.load(adapter, self._scheduler.adapters | self._steps.adapters)

    def unload_adapter(self, digest: bytes) -> bool:
        """Let no further sequence name an adapter; those that do go on to their ends with it.

        False if it is not loaded.
        """
        return self._adapters is not None and self._adapters.unload(digest)

    def abort(self, sequence_id: str) -> SequenceOutput | None:
        """End a sequence in any state; its blocks are free on return.

        Returns its end, which says what was computed for it; None if it is not here.

        So whoever reads or writes blocks of it from another thread must have stopped before.

        The next step reports its end, unless an end was reported already. Unknown ids are ignored:
        the sequence may have ended while the abort was on its way.
        """
        sequence = self._scheduler.get(sequence_id)
        if sequence is None:
            return None
        output = final_output(sequence, FinishReason.ABORT)
        if not sequence.has_ended:
            self._pending_outputs.append(output)
        self._scheduler.finish(sequence)
        return output

    def import_finished(
        self, sequence_id: str, *, num_computed_tokens: int, first_token_id: int | None = None
    ) -> None:
        """Let a sequence that waits for an import run: its blocks hold KV now.

        Whole blocks become reusable. Unknown ids are ignored: the sequence may have been aborted.

        Args:
            sequence_id: a sequence that a step has reserved blocks for, or one that was resumed.
            num_computed_tokens: leading tokens whose KV is valid, at least the
                ``num_cached_tokens`` of the reservation. The engine prefills the rest, so a failed
                import is no special case; of a HANDOVER without blocks behind the window, all.
            first_token_id: the next output token, which the producer sampled and published; it is
                not reported again; what a grammar forces after it is. Needs the KV of all tokens
                before it.

        Raises:
            SequenceStateError: it does not wait for an import.
            InvalidSequenceError: an argument is out of range.
        """
        sequence = self._scheduler.get(sequence_id)
        if sequence is None:
            return
        if sequence.state is not SequenceState.IMPORTING:
            raise SequenceStateError(sequence_id, sequence.state.value, "importing")
        check_import(sequence, num_computed_tokens, first_token_id, self.model.vocab_size)
        if first_token_id is None:
            # Without its logits nothing can be sampled, so the last token is computed again.
            num_computed_tokens = min(num_computed_tokens, len(sequence.token_ids) - 1)
        sequence.num_computed_tokens = sequence.num_launched_tokens = num_computed_tokens
        self._blocks.register_computed(sequence)
        if self._blocks.lacks_window(sequence):
            self._scheduler.give_up_import(sequence)
            return
        self._scheduler.start_running(sequence)
        if first_token_id is not None:
            self._take_first_token(sequence, first_token_id)

    def release(self, sequence_id: str) -> None:
        """Free the blocks of a finished ``prefill_only`` sequence; whole blocks stay cached.

        Unknown ids are ignored: the sequence may have been aborted.

        Raises:
            SequenceStateError: it has not sampled its token yet, or was never ``prefill_only``.
        """
        sequence = self._scheduler.get(sequence_id)
        if sequence is None:
            return
        if sequence.state is not SequenceState.HELD:
            raise SequenceStateError(sequence_id, sequence.state.value, "held")
        self._scheduler.finish(sequence)

    def step(self) -> StepResult:
        """Launch a step, read the oldest that is due, and return what changed since the last call.

        What a result says of blocks is safe to act on: no launched step still writes to a block
        that is reserved for an import, or reads one that was given back.
        """
        started = self._clock()
        scheduled, failed = self._steps.launch(started)
        outputs, self._pending_outputs = [*self._pending_outputs, *failed], []
        reserved = tuple(
            Reservation(
                s.sequence_id,
                tuple(s.block_ids),
                s.num_cached_tokens,
                s.num_null_blocks,
                s.windowed.start,
                s.waited_for,
            )
            for s in scheduled.reserved
        )
        computed: list[ComputedBlocks] = []
        stats = StepStats(
            num_preempted=scheduled.num_preempted,
            given_up_seconds=self._steps.take_given_up_seconds(),
        )
        if self._steps and (self._steps.is_full or not scheduled.batch):
            new_outputs, computed, stats = self._steps.read(scheduled.num_preempted)
            outputs += new_outputs
        stored, evicted = self._pool.take_events()
        partial = frozenset(b for _, b in stored if not self._pool.is_whole(b))
        if not self.has_work():
            self._steps.idle()
        ended = self._clock()
        if scheduled.batch:
            self._last_step = started, ended
        return StepResult(
            reserved=reserved,
            preempted=scheduled.preempted,
            resumed=scheduled.resumed,
            outputs=tuple(outputs),
            computed=tuple(computed),
            stored=stored,
            partial=partial,
            evicted=evicted,
            stats=stats,
            seconds=ended - started,
        )

    def has_work(self) -> bool:
        """Tell whether a step would do anything; False while all wait for blocks or imports."""
        return (
            bool(self._pending_outputs or self._steps)
            or self._pool.has_events
            or self._scheduler.has_work()
        )

    def rest_seconds(self) -> float:
        """Return for how long the next step should be put off; any change may make that less.

        More than 0 only while nothing but decodes is to be done here, and other workers of
        this machine compute: they have its processors meanwhile, and a step is of more decodes.
        """
        if self._shared_processors is None or not self._scheduler.importing:
            return 0.0
        if self._pending_outputs or self._steps or not self._scheduler.has_only_decodes():
            return 0.0
        started, ended = self._last_step
        rest = rest_after(ended - started, self._scheduler.rest_counts())
        rest -= self._clock() - ended
        if rest <= 0 or not self.others_compute():
            return 0.0
        self._shared_processors.rest()
        return rest

    @property
    def shares_processors(self) -> bool:
        """Whether other workers of this machine may compute on its processors."""
        return self._shared_processors is not None

    def others_compute(self) -> bool:
        """Whether other workers of this machine compute on its processors now. From any thread."""
        shared = self._shared_processors
        return shared is not None and shared.others_compute()

    def set_step_cost(self, cost: StepCost) -> None:
        """Say how long steps take, as measured: tenants share a step's time by it."""
        self._scheduler.step_cost = cost

    def use_lower_tier(self, match: MatchLower) -> None:
        """Say which blocks can be fetched: a preempted sequence may get back its own from there.

        It does where that is predicted to be sooner than to compute them; see `set_step_cost`.
        """
        self._scheduler.match_lower = match

    def load(self) -> EngineLoad:
        """Return how busy the engine is."""
        return EngineLoad.of(self._scheduler, self._pool)

    def match_prefix(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many leading blocks are on the device. No side effect."""
        return self._pool.match(block_hashes)

    def check_invariants(self) -> None:
        """Recount everything from first principles; AssertionError if anything differs."""
        self._scheduler.check_invariants()

    def _adapter_slot(self, digest: bytes) -> int:
        slot = NO_ADAPTER
        if digest:
            found = None if self._adapters is None else self._adapters.slot_of(digest)
            if found is None:
                raise AdapterNotLoadedError(digest, self.adapters)
            slot = found
        return slot

    def _take_first_token(self, sequence: Sequence, token_id: int) -> None:
        output = take_tokens(sequence, [token_id])
        first_index, token_ids = output.first_index + 1, output.token_ids[1:]
        rest = output._replace(first_index=first_index, token_ids=token_ids)
        if rest.token_ids or rest.finish_reason is not None:
            self._pending_outputs.append(rest)
        if rest.finish_reason is not None:  # a producer that is awake hands no such one over
            self._scheduler.finish(sequence)
