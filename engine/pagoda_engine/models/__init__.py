"""Decoder models: what they are (`description`), their weights, and one forward for all of them."""

from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.model_folder import LoadedModel, load_model

__all__ = ["Decoder", "DecoderDescription", "LoadedModel", "load_model"]
