import errno
import socket

import pytest

from pagoda_runtime.errors import StartError
from pagoda_runtime.needed import needed


def no_host(name: str) -> UnicodeError:
    with pytest.raises(UnicodeError) as caught:
        socket.getaddrinfo(name, 80)
    return caught.value


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not"),
        (no_host("a..b"), r"no host has such a name \(encoding with 'idna' codec failed"),
        (OSError(errno.EADDRINUSE, "error while attempting to bind"), "Address already in use"),
    ],
)
def test_the_cause_is_said_in_the_systems_words(error: Exception, cause: str) -> None:
    with (
        pytest.raises(StartError, match=rf"^cannot listen \({cause}.*\): free it$"),
        needed("cannot listen", "free it"),
    ):
        raise error
