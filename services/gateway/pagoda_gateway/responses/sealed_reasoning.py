"""Reasoning as clients carry it from one request to the next without reading it.

OpenAI's servers encrypt it, as nobody shall read it. Here it is in the answer anyway: this is a
copy of it, for clients that send back nothing else. It is as long as it was: what is sent back
cannot become more than a body may have.
"""

import base64

_MARK = "pagoda1."  # what others have sealed begins otherwise


def sealed(text: str) -> str:
    """Return the copy of a text."""
    return _MARK + base64.b64encode(text.encode()).decode()


def unsealed(copy: object) -> str:
    """Return the text of a copy that was made here; empty: it was not, or is damaged."""
    if not isinstance(copy, str) or not copy.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(copy[len(_MARK) :], validate=True).decode()
    except ValueError:  # no base64, or no text
        return ""
