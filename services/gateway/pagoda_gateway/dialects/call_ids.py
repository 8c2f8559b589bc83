"""Ids of calls: new ones, and ones of a history that a model's template would not take.

Some models know ids of one length only, such as Mistral's 9 letters and digits.
"""

import hashlib
import secrets
import string

NUM_BYTES = 12
_ALPHABET = string.ascii_letters + string.digits


def new_call_id(prefix: str, num_chars: int | None) -> str:
    """Return an id that no other call has; `num_chars`: letters and digits it may only have."""
    if num_chars is None:
        return prefix + secrets.token_hex(NUM_BYTES)
    return "".join(secrets.choice(_ALPHABET) for _ in range(num_chars))


def fitting_call_id(call_id: str, num_chars: int) -> str:
    """Return an id that is made of so many letters and digits: the same for the same one."""
    if len(call_id) == num_chars and call_id.isascii() and call_id.isalnum():
        return call_id
    digest = hashlib.blake2b(call_id.encode("utf-8", "surrogatepass")).digest()
    number = int.from_bytes(digest, "little")
    chars = []
    for _ in range(num_chars):
        number, index = divmod(number, len(_ALPHABET))
        chars.append(_ALPHABET[index])
    return "".join(chars)
