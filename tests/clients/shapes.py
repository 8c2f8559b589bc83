"""What clients ask the model for. Bounded without lengths: some clients leave those away."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

QUESTION = "What news from Rome?"
TOO_LONG = "word " * 5000


class Person(BaseModel):
    """Someone in a play."""

    model_config = ConfigDict(extra="forbid")

    rank: Literal["king", "duke"]
    house: Literal["York", "Lancaster"]
    lives: bool


def weather(city: Literal["Rome", "Paris"]) -> str:
    """Return the weather of a city."""
    return f"It is sunny in {city}."
