"""What an operator may do to a stream behind a service's back."""

from pagoda_runtime.messaging.bus import Bus


async def replay(bus: Bus, stream: str, durable: str) -> None:
    """Make a durable anew, so that whoever runs on it gets the stream from its first message."""
    jetstream = bus._client.jetstream()
    info = await jetstream.consumer_info(stream, durable)
    await jetstream.delete_consumer(stream, durable)
    await jetstream.add_consumer(stream, config=info.config)
