"""The gateway's parts, made and tied together once; everything an HTTP route needs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from opentelemetry.context import Context

from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import UsageApplied
from pagoda_gateway.accounts.database import VARIABLE as LEDGER_VARIABLE
from pagoda_gateway.accounts.database import open_database
from pagoda_gateway.accounts.key_use import KeyUse
from pagoda_gateway.accounts.keys import ApiKey, Authenticator
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.limits.accounted import Accounted
from pagoda_gateway.accounts.limits.counters import connected_counters
from pagoda_gateway.accounts.limits.limiter import Limiter
from pagoda_gateway.accounts.limits.reservation import Limits
from pagoda_gateway.accounts.limits.spending import Spending
from pagoda_gateway.accounts.limits.waiting_line import WaitingLines
from pagoda_gateway.accounts.money.money import Money
from pagoda_gateway.accounts.money.price_book import PriceBook
from pagoda_gateway.accounts.prefixes.prefixes import Prefixes
from pagoda_gateway.accounts.tenancy.changes import AccountChanges
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.accounts.usage.deliveries import deliveries_in
from pagoda_gateway.accounts.usage.forwarder import Forwarder
from pagoda_gateway.accounts.usage.outbox import Outbox
from pagoda_gateway.accounts.usage.usage_log import UsageLog
from pagoda_gateway.adapters import AdapterLoader
from pagoda_gateway.anthropic.endpoint import MessagesEndpoint
from pagoda_gateway.batches.batch_store import BatchStore
from pagoda_gateway.batches.file_store import FileLimits, FileStore
from pagoda_gateway.body_budget import BodyBudget
from pagoda_gateway.catalog import Catalog
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.embeddings.endpoint import EmbeddingProcessor, EmbeddingsEndpoint
from pagoda_gateway.large_bodies import LargeBodies
from pagoda_gateway.model_text import ModelText, load_texts
from pagoda_gateway.openai.answer_form import AnswerForms
from pagoda_gateway.openai.chat import ChatEndpoint, ChatProcessor
from pagoda_gateway.openai.completions import CompletionEndpoint, CompletionProcessor
from pagoda_gateway.openai.sampling.generation_config import GenerationConfig
from pagoda_gateway.response_cache.response_cache import ResponseCache
from pagoda_gateway.response_store.database_store import DatabaseResponseStore
from pagoda_gateway.responses.endpoint import ResponsesEndpoint
from pagoda_gateway.safety.policies.policies import Policies, open_policies
from pagoda_gateway.sequences.admission import Admission
from pagoda_gateway.sequences.after_step import AfterStep
from pagoda_gateway.sequences.frames import FrameReceiver
from pagoda_gateway.sequences.placement import Placer
from pagoda_gateway.sequences.readiness import Readiness
from pagoda_gateway.sequences.silence import SilenceWatch
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.grammar_checker import GrammarThreads
from pagoda_gateway.text.prompts import PromptMaker
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.identity import new_epoch
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus, Subscription
from pagoda_runtime.needed import needed, needed_folder
from pagoda_runtime.process.health import Health
from pagoda_runtime.status import (
    EXPIRY_SECONDS,
    SLOW_HEARTBEAT_SECONDS,
    Heartbeat,
    WorkerDirectory,
    slow_status,
)
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

P = TypeVar("P")

DEFAULT_TENANT = "default"
SEND_SECONDS = 5.0
MAX_ANSWER_SECONDS = 30.0  # of a probe, whatever silence is; workers may not answer after 60


@dataclass(frozen=True, slots=True)
class Gateway:
    """One replica.

    What belongs to one model is in `texts` and in the endpoints' processors, by the name of the
    `ServedModel` that the catalog has for a body's `model`.
    """

    gateway_id: str
    served_name: str  # of its own model, PAGODA_MODEL
    settings: GatewaySettings
    health: Health
    bus: Bus
    directory: WorkerDirectory
    catalog: Catalog
    adapters: AdapterLoader
    texts: Mapping[str, ModelText]
    chat: ChatEndpoint
    completions: CompletionEndpoint
    embeddings: EmbeddingsEndpoint
    messages: MessagesEndpoint
    responses: ResponsesEndpoint
    frames: FrameReceiver
    after_step: AfterStep
    placer: Placer
    usage_log: UsageLog
    ledger: Ledger
    tenancy: Tenancy
    authenticator: Authenticator
    key_use: KeyUse
    prefixes: Prefixes
    money: Money
    limits: Limits
    accounted: Accounted
    files: FileStore
    batches: BatchStore
    admission: Admission
    bodies: BodyBudget
    large_bodies: LargeBodies
    policies: Policies
    response_cache: ResponseCache

    @property
    def price_book(self) -> PriceBook:
        """What requests are priced by."""
        return self.money.book

    def now(self) -> float:
        """Return Unix seconds as all replicas have them: of whatever is kept or billed."""
        return self.ledger.database.now()

    def model_of(self, key: ApiKey, name: str) -> ServedModel:
        """Return the model that a key asks for by `name`, its own or an alias, or with an adapter.

        Raises:
            ModelNotFoundError, UnavailableError: see `Catalog.get`.
            ForbiddenError: the key may use others alone.
        """
        model = self.catalog.get(name)
        if model.adapter or not key.may_use(name):  # what an adapter's own name means may change
            key.check_model(model.full_name, asked_as=name)
        return model


@contextlib.asynccontextmanager
async def open_gateway(
    *,
    common: CommonSettings,
    settings: GatewaySettings,
    model_folder: Path,
    bus: Bus,
    health: Health,
    gateway_id: str,
) -> AsyncIterator[Gateway]:
    """Yield a gateway that receives frames and heartbeats and writes usage records.

    It is yielded once it has heard of a decode worker with its own model, or of none for as long as
    one that lives may say nothing.

    It is ready while a router and a decode worker with its own model are alive. While it is open,
    workers keep its sequences.

    Raises:
        ModelFolderError: a model's text files cannot be used.
        SafetyFileError: the policy file cannot be used.
    """
    grammar_threads, large_bodies = GrammarThreads(), LargeBodies()
    texts = await load_texts(
        common.served_model_name,
        model_folder,
        further=settings.models,
        tool_format=settings.tool_format,
        has_defaults=settings.generation_config == "auto",
        threads=grammar_threads,
    )

    def by_model(
        make: Callable[[GatewaySettings, PromptMaker, AnswerForms, GenerationConfig], P],
    ) -> dict[str, P]:
        return {
            name: make(settings, text.prompts, text.forms, text.defaults)
            for name, text in texts.items()
        }

    chats = by_model(ChatProcessor)
    directory, after_step = WorkerDirectory(), AfterStep()
    frames = FrameReceiver(after_step)
    readiness = Readiness(health, common.served_model_name)
    async with (
        open_policies(settings.safety_file) as policies,
        open_database(settings.ledger_address(common.home)) as database,
        connected_counters(
            settings.limits_address(common.redis_url),
            timeout_seconds=settings.limits_timeout_seconds,
        ) as counters,
        _open_usage_log(bus, health, gateway_id, settings, common.home, database.now) as (
            usage_log,
            forwarder,
        ),
    ):
        ledger, changes = Ledger(database), AccountChanges(bus)
        tenancy = Tenancy.of(database, changes.announce)
        secret = settings.bootstrap_api_key.get_secret_value()
        if secret:
            remedy = f"set {LEDGER_VARIABLE} to a database and a role that may write"
            with needed("cannot put the first key into the ledger", remedy):
                await tenancy.api_keys.ensure(DEFAULT_TENANT, "bootstrap", secret)
        money = await Money.of(ledger, changes.announce, settings)
        changes.add_listener(money.book.on_change)
        key_use = KeyUse(tenancy.api_keys.note_used, clock=database.now)
        authenticator = Authenticator(
            tenancy.api_keys, on_use=key_use.note, wall_clock=database.now
        )
        changes.add_listener(authenticator.forget)
        accounted = Accounted(bus, forwarder)
        limiter = Limiter(
            counters,
            Spending(database, money.book),
            wait_accounted=accounted.wait,
            on_state=lambda problem: health.set_ready(
                "limits", True, settings.described_without_limits(problem)
            ),
        )
        changes.add_listener(limiter.hear)
        files = FileStore(database, _file_limits(settings))
        catalog = Catalog(
            directory,
            list(texts),
            num_tokens={n: text.prompts.tokenizer.vocab_size for n, text in texts.items()},
            on_change=readiness.on_decode_workers,
        )
        prefillers = WorkerDirectory()
        directory.add_listener(frames.on_worker)
        directory.add_listener(readiness.on_status)
        gateway = Gateway(
            gateway_id=gateway_id,
            served_name=common.served_model_name,
            settings=settings,
            health=health,
            bus=bus,
            directory=directory,
            catalog=catalog,
            adapters=AdapterLoader(bus, catalog, directory, prefillers),
            texts=texts,
            chat=ChatEndpoint(chats),
            completions=CompletionEndpoint(by_model(CompletionProcessor)),
            embeddings=EmbeddingsEndpoint(by_model(EmbeddingProcessor)),
            messages=MessagesEndpoint(chats),
            responses=ResponsesEndpoint(
                chats,
                DatabaseResponseStore(
                    database,
                    large_bodies,
                    gateway_id=gateway_id,
                    max_bytes=settings.response_store_bytes,
                    keep_seconds=settings.response_store_seconds,
                    run_seconds=settings.request_timeout_seconds,
                ),
                ledger.object_row,
                gateway_id=gateway_id,
                max_conversation_bytes=settings.max_body_bytes,
            ),
            frames=frames,
            after_step=after_step,
            placer=Placer(bus, directory, settings, gateway_id=gateway_id),
            usage_log=usage_log,
            ledger=ledger,
            tenancy=tenancy,
            authenticator=authenticator,
            key_use=key_use,
            prefixes=Prefixes(
                max_bytes=settings.prefix_memory_bytes,
                max_tenant_bytes=settings.prefix_tenant_bytes,
                lost_micros=money.book.lost_micros,
            ),
            money=money,
            limits=Limits(
                limiter,
                money.book,
                WaitingLines(settings.limit_queue_requests),
                queue_seconds=settings.limit_queue_seconds,
                is_open=settings.limits_without_redis == "open",
            ),
            accounted=accounted,
            files=files,
            batches=BatchStore(ledger.database, files),
            admission=Admission(settings.max_requests_in_flight),
            bodies=BodyBudget(settings.body_budget_bytes),
            large_bodies=large_bodies,
            policies=policies,
            response_cache=ResponseCache(settings.response_cache_bytes),
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(grammar_threads.close)
            stack.callback(large_bodies.close)
            stack.push_async_callback(gateway.responses.background.close)
            for subscription in (
                await frames.subscribe(bus, gateway_id),
                await directory.subscribe(bus, Role.ROLE_DECODE, Role.ROLE_ROUTER),
                await prefillers.subscribe(bus, Role.ROLE_PREFILL),
                await changes.subscribe(),
                await _hear_of_applied(bus, ledger),
            ):
                stack.push_async_callback(subscription.unsubscribe)
            stack.push_async_callback(key_use.flush)
            stack.push_async_callback(limiter.close)
            stack.push_async_callback(accounted.close)
            tasks = BackgroundTasks()
            stack.push_async_callback(tasks.close)
            own_status = slow_status(Role.ROLE_GATEWAY, gateway_id, new_epoch())
            heartbeat = Heartbeat(bus, lambda: own_status, interval_seconds=SLOW_HEARTBEAT_SECONDS)
            watch = SilenceWatch(
                bus,
                frames,
                directory.forget,
                silence_seconds=settings.silence_seconds,
                timeout_seconds=min(settings.silence_seconds, MAX_ANSWER_SECONDS),
            )
            tasks.start(heartbeat.run(), name="heartbeat")
            tasks.start(watch.run(), name="silence watch")
            tasks.start(key_use.run(), name="use of keys")
            tasks.start(money.book.follow(money.prices.all), name="prices")
            tasks.start(gateway.responses.run(), name="kept responses")
            has_tiers = await tenancy.tiers.are_there()
            health.set_ready("limits", True)
            tasks.start(limiter.run(is_needed=has_tiers), name="limits")
            health.set_ready("gateway", True)
            # Started anew it has clients that wait: none is to hear that nobody serves its model.
            await catalog.changes_until(
                lambda entries: common.served_model_name in entries, EXPIRY_SECONDS
            )
            yield gateway


@contextlib.asynccontextmanager
async def _open_usage_log(
    bus: Bus,
    health: Health,
    gateway_id: str,
    settings: GatewaySettings,
    home: Path,
    clock: Callable[[], float],
) -> AsyncIterator[tuple[UsageLog, Forwarder]]:
    """Yield the log and what sends its records on; at the end they have a moment to leave."""
    root, tasks = settings.outbox_folder(home), BackgroundTasks()
    with needed_folder(root, "PAGODA_GATEWAY_OUTBOX_DIR"):
        outbox = await Outbox.open(
            root,
            gateway_id,
            max_bytes=settings.outbox_bytes,
            on_state=lambda is_ready, why: health.set_ready("usage log", is_ready, why),
        )
    forwarder = Forwarder(
        bus,
        outbox,
        root,
        timeout_seconds=settings.usage_timeout_seconds,
        unix_clock=clock,
    )
    try:
        tasks.start(forwarder.run(), name="send usage records")
        tasks.start(forwarder.adopt_forever(), name="adopt outboxes")
        log = UsageLog(
            outbox,
            timeout_seconds=settings.usage_timeout_seconds,
            clock=clock,
            deliveries=deliveries_in(outbox.folder),
        )
        yield log, forwarder
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                await outbox.is_drained.wait()
    finally:
        await tasks.close()
        await outbox.close()


async def _hear_of_applied(bus: Bus, ledger: Ledger) -> Subscription:
    async def on_news(_news: UsageApplied, _context: Context) -> None:
        ledger.note_applied()

    return await bus.subscribe(subjects.ACCOUNTS_APPLIED, UsageApplied, on_news)


def _file_limits(settings: GatewaySettings) -> FileLimits:
    return FileLimits(
        file_bytes=settings.max_file_bytes,
        tenant_bytes=settings.tenant_file_bytes,
        total_bytes=settings.total_file_bytes,
        keep_seconds=settings.file_keep_seconds,
    )
