"""The models of this gateway by name and alias, as the decode workers' heartbeats describe them.

Owns which name leads to which model. Knows no tokenizer and no request.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType

from pagoda.rpc.v1.status_pb2 import ModelCard, Role, WorkerStatus
from pagoda_gateway.errors import ModelNotFoundError, UnavailableError, shorten
from pagoda_gateway.served_model import KvCost, ServedModel
from pagoda_runtime.status import WorkerDirectory

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 2.0
MAX_LISTED = 20
MAX_SAID = 256  # things said once; beyond it nothing new is: names are anybody's


@dataclass(frozen=True, slots=True)
class _Announced:
    """What a decode worker says, and since when: epochs sort by the workers' starts."""

    epoch: str
    card: ModelCard
    name: str
    aliases: tuple[str, ...]
    kv_identity: bytes
    max_model_len: int
    adapters: tuple[tuple[str, bytes], ...]

    @classmethod
    def by(cls, status: WorkerStatus) -> "_Announced":
        card = status.model
        return cls(
            epoch=status.epoch,
            card=card,
            name=card.name,
            aliases=tuple(card.aliases),
            kv_identity=card.kv_identity,
            max_model_len=card.max_model_len,
            adapters=tuple((adapter.name, adapter.digest) for adapter in card.adapters),
        )


class Catalog:
    """Knows a served model once a decode worker has announced it, also while none is alive.

    Served is what this gateway has the files of. An alias leads to the model of the worker that has
    announced it for longest, so that all gateways agree; while no worker of that model is alive,
    the alias stays unless another model has it too. A model's own name is no other's alias.

    An adapter that any decode worker of a model has is asked for as ``<model>:<adapter>``, also
    with an alias, or by its name alone if no model and no other model's adapter has that.

    A look-up is one in a dict, and a heartbeat that brings nothing new costs a comparison, however
    many models and workers there are.
    """

    def __init__(
        self,
        directory: WorkerDirectory,
        served_names: Sequence[str],
        *,
        num_tokens: Mapping[str, int] = MappingProxyType({}),
        on_change: Callable[[Mapping[str, int]], None] = lambda num_workers: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Follow `directory`.

        Args:
            directory: of decode workers.
            served_names: models whose files this gateway has, in the order of lists.
            num_tokens: that the tokenizer of each of them has.
            on_change: hears how many decode workers each of them has, now and when that may have
                changed.
            clock: Unix seconds.
        """
        self._served_names = tuple(served_names)
        self._num_tokens = num_tokens
        self._on_change = on_change
        self._clock = clock
        self._announced: dict[str, _Announced] = {}  # by worker; of models not served here, too
        self._models: dict[str, ServedModel] = {}  # by their own name
        self._by_id: dict[str, ServedModel] = {}  # by name or alias
        self._entries: dict[str, ServedModel] = {}  # these, then `_adapters`
        self._adapters: dict[str, ServedModel] = {}  # by full name
        self._bare: dict[str, ServedModel] = {}  # by name of the adapter alone
        self._changed = asyncio.Event()
        self._said: set[tuple[str, ...]] = set()
        directory.add_listener(self._on_status)
        for status in directory.alive():
            self._on_status(status.worker_id, status)
        self._update()

    @property
    def entries(self) -> Mapping[str, ServedModel]:
        """What may be asked for now: names as in `served_names`, aliases, models with adapters."""
        return self._entries

    def get(self, name: str) -> ServedModel:
        """Return the model that is called `name`, or has that alias.

        Raises:
            ModelNotFoundError: this gateway does not serve it.
            UnavailableError: it does, but no worker has announced it yet.
        """
        if found := self._found(name):
            return found
        base = name.rpartition(":")[0]
        model = self._by_id.get(base)
        if name in self._served_names or (model is None and base in self._served_names):
            raise UnavailableError(
                f"no decode worker serves '{name}' yet; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        several = [full for full, model in self._adapters.items() if model.adapter == name]
        if several:
            listed = " or ".join(f"'{full}'" for full in several[:MAX_LISTED])
            raise ModelNotFoundError(
                f"several models have an adapter {shorten(name)}; ask for {listed}", param="model"
            )
        known = list(dict.fromkeys((*self._served_names, *self._entries)))
        listed = ", ".join(f"'{known_name}'" for known_name in known[:MAX_LISTED])
        more = len(known) - MAX_LISTED
        more_text = f" and {more} more, which GET /v1/models lists" if more > 0 else ""
        raise ModelNotFoundError(
            f"The model {shorten(name)} does not exist here; this server has {listed}{more_text}",
            param="model",
        )

    def full_name(self, name: str) -> str:
        """Return the own name of what is called so, or `name` where nothing is."""
        found = self._found(name)
        return name if found is None else found.full_name

    def _found(self, name: str) -> ServedModel | None:
        found = self._by_id.get(name) or self._bare.get(name)
        base, _, adapter = name.rpartition(":")
        if found is None and (model := self._by_id.get(base)):
            return self._adapters.get(f"{model.name}:{adapter}")
        return found

    async def changes_until(
        self, is_there: Callable[[Mapping[str, ServedModel]], bool], seconds: float
    ) -> bool:
        """Wait until `entries` are as wanted; False if they are not after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while not is_there(self.entries):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _on_status(self, worker_id: str, status: WorkerStatus | None) -> None:
        if status is None:
            if self._announced.pop(worker_id, None) is None:
                return
        elif status.role != Role.ROLE_DECODE:
            return
        else:
            known = self._announced.get(worker_id)
            if known is not None and known.card == status.model:
                return
            self._announced[worker_id] = _Announced.by(status)
            self._learn(worker_id, status.model)
        self._update()

    def _learn(self, worker_id: str, card: ModelCard) -> None:
        if card.name not in self._served_names:
            self._say_once(
                f"decode worker {worker_id} serves {shorten(card.name)}, whose files this gateway "
                "does not have, so it is not offered here. To offer it, add it to "
                'PAGODA_GATEWAY_MODELS, as {"name": "folder or hub name"}',
                key=("no files", card.name),
            )
            return
        known = self._models.get(card.name)
        if known is not None and known.kv_identity == card.kv_identity:
            return
        if known is not None:
            logger.warning(
                "decode worker %s serves another model as '%s' than workers before it (its weights "
                "or dtype differ); requests go to such workers from now on. Models that shall be "
                "served side by side need names of their own: PAGODA_MODEL_NAME",
                worker_id, card.name,
            )  # fmt: skip
        if (num_tokens := self._num_tokens.get(card.name, 0)) > card.vocab_size:
            logger.warning(
                "the tokenizer of '%s' has %d tokens, and its vocab_size is %d: prompts with a "
                "token from %d on are refused. Is it another model's tokenizer?",
                card.name, num_tokens, card.vocab_size, card.vocab_size,
            )  # fmt: skip
        self._models[card.name] = ServedModel(
            name=card.name,
            kv_identity=card.kv_identity,
            block_size=card.block_size,
            max_model_len=card.max_model_len,
            vocab_size=card.vocab_size,
            embedding_size=card.embedding_size,
            quantization=card.quantization or "none",
            kv=KvCost(
                dtype=card.kv_cache_dtype,
                block_bytes=card.block_bytes,
                window=card.kv_window or None,
                block_bytes_behind_window=card.block_bytes_behind_window,
            ),
            created_unix_seconds=int(self._clock()),
        )

    def _update(self) -> None:
        """Follow what the workers alive say now, in one pass: there may be a thousand."""
        num_workers: Counter[str] = Counter()
        limits: dict[tuple[str, bytes], int] = {}
        claims: dict[tuple[str, tuple[str, ...]], str] = {}  # name and aliases: since when
        for said in self._announced.values():
            num_workers[said.name] += 1
            identity = said.name, said.kv_identity
            limits[identity] = min(said.max_model_len, limits.get(identity, said.max_model_len))
            claim = said.name, said.aliases
            claims[claim] = min(said.epoch, claims.get(claim, said.epoch))
        # A limit is what every decode worker can keep: they may have unequal KV pools.
        for name, model in self._models.items():
            limit = limits.get((name, model.kv_identity), model.max_model_len)
            if limit != model.max_model_len:
                self._models[name] = replace(model, max_model_len=limit)
        by_id = self._resolved(num_workers, sorted(claims, key=claims.__getitem__))
        self._update_adapters(num_workers, {*self._served_names, *by_id})
        self._by_id = by_id
        self._entries = by_id | {n: m for n, m in self._adapters.items() if n not in by_id}
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_change({name: num_workers[name] for name in self._served_names})

    def _update_adapters(self, num_workers: Mapping[str, int], names: AbstractSet[str]) -> None:
        """Follow what the workers alive say; while a model has none, it keeps its adapters."""
        said: dict[tuple[str, str], Counter[bytes]] = {}
        for each in self._announced.values():
            model = self._models.get(each.name)
            if model is not None and model.kv_identity == each.kv_identity:
                for adapter, digest in each.adapters:
                    said.setdefault((each.name, adapter), Counter())[digest] += 1
        found = {name: m for name, m in self._adapters.items() if not num_workers.get(m.name)}
        for (name, adapter), digests in sorted(said.items()):
            # Where a name leads to several contents, all gateways take the same one.
            digest = max(digests, key=lambda each: (digests[each], each))
            model = replace(self._models[name], adapter=adapter, adapter_digest=digest)
            found[model.full_name] = model
        self._adapters = found
        bare = Counter(model.adapter for model in found.values())
        self._bare = {
            model.adapter: model
            for model in found.values()
            if bare[model.adapter] == 1 and model.adapter not in names
        }

    def _resolved(
        self, num_workers: Mapping[str, int], claims: Sequence[tuple[str, tuple[str, ...]]]
    ) -> dict[str, ServedModel]:
        """Return what each name and each alias leads to.

        Args:
            num_workers: alive, by model, also of models not served here.
            claims: names with aliases that their workers announce, the oldest first.
        """
        holders: dict[str, str] = {}  # of aliases, served here or not
        names = {*self._served_names, *num_workers}
        for name, aliases in claims:
            for alias in aliases:
                holder = alias if alias in names else holders.setdefault(alias, name)
                if holder != name and alias != name:
                    self._say_once(
                        f"{shorten(alias)} is announced as an alias of {shorten(name)}, but leads "
                        f"to {shorten(holder)} already. Change PAGODA_MODEL_ALIASES of one of them",
                        key=("alias", alias, name, holder),
                    )
        for alias, model in self._by_id.items():
            if alias not in names and not num_workers.get(model.name):
                holders.setdefault(alias, model.name)
        leads_to = {name: name for name in self._served_names} | dict(sorted(holders.items()))
        return {id_: self._models[name] for id_, name in leads_to.items() if name in self._models}

    def _say_once(self, text: str, *, key: tuple[str, ...]) -> None:
        if key not in self._said and len(self._said) < MAX_SAID:
            self._said.add(key)
            logger.warning("%s", text)
