from support.servers import free_port

from pagoda_cli.up.readiness import waiting_for
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.health_server import health_server


async def test_who_is_not_ready_is_named_with_its_reason() -> None:
    ready, loading = Health(), Health()
    ready.set_ready("bus", True)
    loading.set_ready("bus", True)
    loading.set_ready("model", False, "loading")
    async with (
        health_server(ready, host="127.0.0.1", port=0) as first,
        health_server(loading, host="127.0.0.1", port=0) as second,
    ):
        ports = {"router": first, "decode-1": second, "gateway": free_port()}
        addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}

        assert await waiting_for(addresses) == ["decode-1 (model: loading)", "gateway"]
