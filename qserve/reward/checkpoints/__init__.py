"""Trained reward models and embedding models on disk: which format a path holds, where body and head are, how it was
pooled.
"""

from qserve.reward.checkpoints.describe import HeadLayer, RewardCheckpoint, RewardHead, StoredTensor, Vectors
from qserve.reward.checkpoints.recognise import recognise

__all__ = ["HeadLayer", "RewardCheckpoint", "RewardHead", "StoredTensor", "Vectors", "recognise"]
