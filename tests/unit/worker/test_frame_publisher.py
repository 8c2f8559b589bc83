from pagoda.rpc.v1 import generate_pb2
from pagoda_runtime.errors import BusDisconnectedError
from pagoda_worker.frame_publisher import FramePublisher


class Recorder:
    def __init__(self) -> None:
        self.published: list[tuple[str, generate_pb2.FramesMessage]] = []
        self.num_dropped = 0
        self.is_broken = False

    def post(self, subject: str, message: generate_pb2.FramesMessage) -> None:
        if self.is_broken:
            raise BusDisconnectedError("gone")
        self.published.append((subject, message))

    def on_dropped(self, count: int) -> None:
        self.num_dropped += count


def make(recorder: Recorder) -> FramePublisher:
    return FramePublisher(recorder.post, worker_id="w", epoch="e", on_dropped=recorder.on_dropped)


def frame(number: int) -> generate_pb2.Frame:
    return generate_pb2.Frame(request_id="r", first_index=number)


def test_one_message_per_step_and_gateway() -> None:
    recorder = Recorder()
    publisher = make(recorder)
    for number, gateway in enumerate(("a", "b", "a")):
        publisher.add(gateway, frame(number))
    publisher.flush()
    publisher.flush()
    publisher.add("b", frame(3))
    publisher.flush()

    got = [(s, [f.first_index for f in m.frames]) for s, m in recorder.published]
    assert got == [
        ("pagoda.v1.frames.a", [0, 2]),
        ("pagoda.v1.frames.b", [1]),
        ("pagoda.v1.frames.b", [3]),
    ]
    assert all((m.worker_id, m.epoch) == ("w", "e") for _, m in recorder.published)


def test_large_step_is_split() -> None:
    recorder = Recorder()
    publisher = make(recorder)
    for number in range(1000):
        publisher.add("a", frame(number))
    publisher.flush()

    assert len(recorder.published) == 2
    assert [f.first_index for _, m in recorder.published for f in m.frames] == list(range(1000))


def test_large_frames_are_split_by_their_bytes() -> None:
    recorder = Recorder()
    publisher = make(recorder)
    for number in range(5):
        publisher.add("a", generate_pb2.Frame(error="x" * 200_000, first_index=number))
    publisher.flush()

    assert [[f.first_index for f in m.frames] for _, m in recorder.published] == [
        [0, 1],
        [2, 3],
        [4],
    ]


def test_disconnected_bus_drops_and_goes_on() -> None:
    recorder = Recorder()
    recorder.is_broken = True
    publisher = make(recorder)
    publisher.add("a", frame(0))
    publisher.flush()
    assert recorder.num_dropped == 1

    recorder.is_broken = False
    publisher.add("a", frame(1))
    publisher.flush()
    assert len(recorder.published) == 1
