"""Dtypes that hold an element of K, V, a weight or an activation in one byte."""

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""The largest magnitude that each stores; larger values saturate."""
