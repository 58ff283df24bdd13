"""Where an iteration spends its time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Times"]


@dataclass
class Times:
    """Seconds spent, summed over threads, and what the consumer waited for.

    Of media: how many rows were decoded, for how many of these a fill value stands, and how many blocks were cached.
    """

    reading: float = 0.0
    gathering: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0
    blocks: int = 0
    decoded: int = 0
    filled: int = 0
    cached: int = 0
