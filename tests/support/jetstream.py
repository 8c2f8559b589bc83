"""What an operator may do to a stream behind a service's back."""

import asyncio

from nats.js.errors import ServerError

from pagoda_runtime.messaging.bus import Bus

CANNOT_STORE = 10012


async def replay(bus: Bus, stream: str, durable: str) -> None:
    """Make a durable anew, so that whoever runs on it gets the stream from its first message."""
    jetstream = bus._client.jetstream()
    info = await jetstream.consumer_info(stream, durable)
    await jetstream.delete_consumer(stream, durable)
    async with asyncio.timeout(60):
        while True:
            try:
                await jetstream.add_consumer(stream, config=info.config)
            except ServerError as error:  # the old one's folder is still on its way out
                if error.err_code != CANNOT_STORE:
                    raise
            else:
                return
