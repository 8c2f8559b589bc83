"""What `pagoda up` runs: every process with its environment, from the plan and the home."""

import sys
from collections.abc import Mapping

from pagoda_cli.all_settings import settings_of
from pagoda_cli.up.child import ChildSpec
from pagoda_cli.up.disk import plan_disk
from pagoda_cli.up.home import Secrets
from pagoda_cli.up.infrastructure import nats_spec, redis_spec
from pagoda_cli.up.plan import Plan, given_ports
from pagoda_cli.up.ports import LOOPBACK, Ports, reachable
from pagoda_cli.up.topology import ROLES
from pagoda_formats.control_groups import num_processors
from pagoda_runtime.configuration.names import PREFIX, SERVICE_PREFIXES, variable_names

GATEWAY_STAGE, SERVICE_STAGE = 0, 1
APPLIER_MODULE = "pagoda_gateway.accounts.usage.applier"
GPU_MEMORY_UTILIZATION = 0.9
"""Of all workers together: they see the same GPU, if there is one."""
STOP_SECONDS = {
    "gateway": ("PAGODA_GATEWAY_DRAIN_SECONDS", "3"),
    "prefill": ("PAGODA_PREFILL_DRAIN_SECONDS", "2"),
    "decode": ("PAGODA_DECODE_DRAIN_SECONDS", "2"),
    "kvstore": ("PAGODA_KVSTORE_FLUSH_SECONDS", "2"),
}
"""What tells a service how long it may finish its work, and our default: with the supervisor's
margins a stack stops within ten seconds."""
SERVICE_SECRETS = {
    "gateway": frozenset({"PAGODA_REDIS_URL"}),
    "router": frozenset({"PAGODA_REDIS_URL"}),
    "prefill": frozenset({"PAGODA_CLUSTER_TOKEN"}),
    "decode": frozenset({"PAGODA_CLUSTER_TOKEN"}),
    "kvstore": frozenset({"PAGODA_CLUSTER_TOKEN"}),
}
"""Which of the platform's secrets a service gets, beside its own settings and its user at NATS."""
NOT_FOR_APPLIERS = frozenset(
    {
        "PAGODA_GATEWAY_BOOTSTRAP_API_KEY",
        "PAGODA_GATEWAY_ADMIN_KEY",
        "PAGODA_GATEWAY_LIMITS_REDIS_URL",
        "PAGODA_REDIS_URL",
    }
)
EMPTY_MEANS_NONE = frozenset(
    {
        "PAGODA_TRACE_DIR",
        "PAGODA_GATEWAY_BOOTSTRAP_API_KEY",
        "PAGODA_GATEWAY_ADMIN_KEY",
        *(f"PAGODA_{role.upper()}_KVSTORE_ENDPOINT" for role in ROLES),
        *(f"PAGODA_{role.upper()}_PROCESSOR_TABLE" for role in ROLES),
    }
)
"""Set empty, they win over what we would choose; of others an empty value counts as unset."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
JOINING_VARIABLES = (
    "PAGODA_NATS_URL", "PAGODA_NATS_USER", "PAGODA_NATS_TOKEN", "PAGODA_CLUSTER_TOKEN",
    "PAGODA_TRACE_DIR",
)  # fmt: skip


class Stack:
    """Builds the processes of one plan; each port is taken once."""

    def __init__(self, plan: Plan, secrets: Secrets, environ: Mapping[str, str]) -> None:
        self._plan = plan
        self._secrets = secrets
        self._user = {
            name: value for name, value in environ.items() if value or name in EMPTY_MEANS_NONE
        }
        self._bare_environment = {
            name: value for name, value in environ.items() if not name.startswith(PREFIX)
        }
        self._ports = Ports(taken={plan.http_port, *given_ports(environ).values()})
        self._nats_passwords: dict[str, str] = {}  # empty: the user's own server
        self._infrastructure: list[ChildSpec] = []
        self._kvstore_port = self._port("PAGODA_KVSTORE_GRPC_PORT")
        self.disk = plan_disk(plan.home, self._user)
        self._shared = self._shared_environment()
        self.api_key = self._shared["PAGODA_GATEWAY_BOOTSTRAP_API_KEY"]
        self.admin_key = self._shared["PAGODA_GATEWAY_ADMIN_KEY"]

    def specs(self) -> list[ChildSpec]:
        """Return all processes; a server that the user named by its URL is not started."""
        kvstore_port = {"PAGODA_KVSTORE_GRPC_PORT": str(self._kvstore_port)}
        services = [
            self._service("gateway", "gateway", {}),
            self._applier(),
            self._service("router", "router", {}),
            self._service("kvstore", "kvstore", kvstore_port),
        ]
        for role in ROLES:
            for index in range(self._plan.topology.num_workers(role)):
                services.append(self._worker(role, index))
        return [*self._infrastructure, *services]

    def joining_environment(self, role: str) -> dict[str, str]:
        """Return what a further worker, of this model or another one, needs to join this stack."""
        known = self._environment_of(role)
        found = {name: known[name] for name in JOINING_VARIABLES if known.get(name)}
        return found | self._kvstore_endpoint(role)

    def _shared_environment(self) -> dict[str, str]:
        plan, secrets, user = self._plan, self._secrets, self._user
        defaults = {
            "PAGODA_CLUSTER_TOKEN": secrets.cluster_token,
            "PAGODA_TRACE_DIR": str(plan.home / "traces"),
            "PAGODA_GATEWAY_HOST": LOOPBACK,
            "PAGODA_GATEWAY_BOOTSTRAP_API_KEY": secrets.api_key,
            "PAGODA_GATEWAY_ADMIN_KEY": secrets.admin_key,
            "PAGODA_KVSTORE_NVME_DIR": str(plan.home / "kvstore"),
            **self.disk.variables,
        }
        if not user.get("PAGODA_NATS_URL"):
            port = self._port("")
            given = user.get("PAGODA_NATS_TOKEN", "")
            self._nats_passwords = {
                name: given or drawn for name, drawn in secrets.nats_passwords.items()
            }
            defaults["PAGODA_NATS_URL"] = f"nats://127.0.0.1:{port}"
            self._infrastructure.append(
                nats_spec(
                    plan.home,
                    port=port,
                    passwords=self._nats_passwords,
                    environ=self._bare_environment,
                )
            )
        if not user.get("PAGODA_REDIS_URL"):
            port = self._port("")
            password = secrets.redis_password
            defaults["PAGODA_REDIS_URL"] = f"redis://:{password}@127.0.0.1:{port}/0"
            self._infrastructure.append(
                redis_spec(plan.home, port=port, password=password, environ=self._bare_environment)
            )
        fixed = {
            "PAGODA_HOME": str(plan.home),
            "PAGODA_MODEL": str(plan.model),
            "PAGODA_MODEL_NAME": plan.model_name,
            "PAGODA_HTTP_PORT": str(plan.http_port),
            "PYTHONUNBUFFERED": "1",
            "PYTHONUTF8": "1",  # whatever the locale: else a path of other letters is no text
        }
        return defaults | self._user | fixed

    def _environment_of(self, service: str, *, user: str = "") -> dict[str, str]:
        """Return what one service may know: no other's settings, and only its own secrets.

        `user`: at NATS, if it is not the service's name.
        """
        own, secrets = f"{PREFIX}{service.upper()}_", SERVICE_SECRETS[service]
        others = tuple(prefix for prefix in SERVICE_PREFIXES if prefix != own)
        hidden = frozenset().union(*SERVICE_SECRETS.values()) - secrets
        environ = {
            name: value
            for name, value in self._shared.items()
            if not name.startswith(others) and name not in hidden
        }
        if self._nats_passwords:
            environ["PAGODA_NATS_USER"] = user or service
            environ["PAGODA_NATS_TOKEN"] = self._nats_passwords[user or service]
        return environ

    def _kvstore_endpoint(self, role: str) -> dict[str, str]:
        name = f"PAGODA_{role.upper()}_KVSTORE_ENDPOINT"
        host = self._user.get("PAGODA_KVSTORE_GRPC_HOST") or LOOPBACK
        return {name: self._user.get(name, f"{reachable(host)}:{self._kvstore_port}")}

    def _worker(self, role: str, index: int) -> ChildSpec:
        prefix = f"PAGODA_{role.upper()}_"
        variables = self._kvstore_endpoint(role) | self._worker_id(role, index)
        if f"{prefix}GRPC_PORT" in _names_of(role):
            variables[f"{prefix}GRPC_PORT"] = str(
                self._port(f"{prefix}GRPC_PORT" if index == 0 else "")
            )
        if not self._user.get(f"{prefix}GPU_MEMORY_UTILIZATION"):
            topology = self._plan.topology
            share = GPU_MEMORY_UTILIZATION / (topology.num_prefill + topology.num_decode)
            variables[f"{prefix}GPU_MEMORY_UTILIZATION"] = f"{share:.3f}"
        table = f"{prefix}PROCESSOR_TABLE"
        variables[table] = self._user.get(table, str(self._plan.home / "processors"))
        for name in THREAD_VARIABLES:
            variables[name] = self._user.get(name) or str(self._num_threads())
        niceness = f"{prefix}CPU_NICENESS"
        variables[niceness] = self._user.get(niceness) or "10"
        # Threads that wait for torch's next operator leave their processor to others.
        variables["OMP_WAIT_POLICY"] = self._user.get("OMP_WAIT_POLICY") or "PASSIVE"
        return self._service(role, f"{role}-{index + 1}", variables, is_first=index == 0)

    def _worker_id(self, role: str, index: int) -> dict[str, str]:
        """Return the id that the user gave; several workers each need one of their own."""
        name = f"PAGODA_{role.upper()}_WORKER_ID"
        given = self._user.get(name)
        if not given or self._plan.topology.num_workers(role) == 1:
            return {}
        return {name: f"{given}-{index + 1}"}

    def _num_threads(self) -> int:
        """Return an equal share of the processors for each worker's operators of torch."""
        topology = self._plan.topology
        num_workers = topology.num_prefill + topology.num_decode
        return max(1, num_processors() // num_workers)

    def _applier(self) -> ChildSpec:
        """What writes the ledger: the gateway's settings, without what opens its doors."""
        environ = self._environment_of("gateway", user="applier")
        port = self._port("")
        environ |= {"PAGODA_GATEWAY_HEALTH_PORT": str(port), "PAGODA_GATEWAY_HEALTH_HOST": LOOPBACK}
        return ChildSpec(
            name="applier",
            command=(sys.executable, "-m", APPLIER_MODULE),
            environ={name: environ[name] for name in environ if name not in NOT_FOR_APPLIERS},
            log=self._plan.home / "logs" / "applier.log",
            stop_stage=SERVICE_STAGE,
            ready_port=port,
        )

    def _service(
        self, service: str, name: str, variables: dict[str, str], *, is_first: bool = True
    ) -> ChildSpec:
        known = _names_of(service)
        stop_seconds = "0"
        if service in STOP_SECONDS:
            setting, default = STOP_SECONDS[service]
            variables[setting] = stop_seconds = self._user.get(setting) or default
        health = f"PAGODA_{service.upper()}_HEALTH_PORT"
        is_gateway = service == "gateway"
        ready_port = self._plan.http_port if is_gateway else None
        host = self._user.get(f"PAGODA_{service.upper()}_HEALTH_HOST") or LOOPBACK
        if health in known:
            port = self._port(health if is_first else "")
            variables[health] = str(port)
            ready_port = ready_port or port
        return ChildSpec(
            name=name,
            command=(sys.executable, "-m", f"pagoda_{service}"),
            environ=self._environment_of(service) | variables,
            log=self._plan.home / "logs" / f"{name}.log",
            stop_stage=GATEWAY_STAGE if is_gateway else SERVICE_STAGE,
            stop_seconds=float(stop_seconds),
            ready_host=self._plan.http_host if is_gateway else host,
            ready_port=ready_port,
        )

    def _port(self, variable: str) -> int:
        """Return the port that the user gave in `variable`, else a free one."""
        given = int(self._user.get(variable) or 0) if variable else 0
        return given or self._ports.pick()

    def close(self) -> None:
        """Let go of the ports, once nothing runs on them."""
        self._ports.close()


def _names_of(service: str) -> set[str]:
    return set(variable_names(settings_of(service)).values())
