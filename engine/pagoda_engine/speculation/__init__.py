"""Speculative decoding: who proposes a sequence's next tokens, and how often that was right.

Knows tokens of sequences and of tenants' outputs. Knows nothing of steps, blocks or what a
verification costs.
"""

from pagoda_engine.speculation.acceptance import Acceptance
from pagoda_engine.speculation.forward_time import ForwardTime
from pagoda_engine.speculation.guesses import Guesses
from pagoda_engine.speculation.ngram import NgramProposer
from pagoda_engine.speculation.proposer import MakeProposer, Proposer
from pagoda_engine.speculation.suffix import SuffixProposer
from pagoda_engine.speculation.tenant_outputs import OutputsKey, TenantOutputs

__all__ = [
    "Acceptance",
    "ForwardTime",
    "Guesses",
    "MakeProposer",
    "NgramProposer",
    "OutputsKey",
    "Proposer",
    "SuffixProposer",
    "TenantOutputs",
]
