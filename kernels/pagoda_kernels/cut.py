"""A request to end a forward pass before its next layer, from another thread."""

import ctypes


class CutShortError(Exception):
    """A forward pass ended before its last layer, as it was asked to.

    The KV that it wrote is right, and is written again when its tokens are computed again.
    """


class Cut:
    """A word that a forward pass on a CPU looks at between two layers."""

    def __init__(self) -> None:
        self._word = ctypes.c_int32(0)

    @property
    def address(self) -> int:
        """Of the word, which is not 0 once it is asked."""
        return ctypes.addressof(self._word)

    @property
    def is_asked(self) -> bool:
        """Whether the pass is to end."""
        return bool(self._word.value)

    def ask(self) -> None:
        """Have the pass that runs end; any thread may."""
        self._word.value = 1

    def withdraw(self) -> None:
        """Ask no longer: another pass begins."""
        self._word.value = 0
