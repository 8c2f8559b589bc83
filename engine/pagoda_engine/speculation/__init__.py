"""Speculative decoding: who proposes a sequence's next tokens, and how often that was right.

Knows tokens of one sequence. Knows nothing of steps, blocks or what a verification costs.
"""

from pagoda_engine.speculation.guesses import Guesses
from pagoda_engine.speculation.ngram import NgramProposer
from pagoda_engine.speculation.proposer import MakeProposer, Proposer

__all__ = ["Guesses", "MakeProposer", "NgramProposer", "Proposer"]
