"""The words of the copying, reversing and counting tasks. Each is one token of the demo's tokenizer."""

from __future__ import annotations

__all__ = ["WORDS"]

_TEXT = """
hello world cat dog sun moon red blue green black white brown gold fox bird fish tree leaf root rain snow wind fire
water ice stone sand sea river lake hill road path bridge house door window roof wall room table chair bed lamp
clock book page pen paper letter word line list name song drum bell horn gate park farm field barn horse cow sheep
goat pig hen duck mouse frog bear wolf lion tiger deer ant bee apple pear plum fig lemon grape peach bread milk
cheese egg rice soup salt sugar honey tea coffee cake cup plate bowl fork knife spoon hat coat shoe sock shirt ring
bag box ball kite toy game train car bus bike boat ship plane wheel engine model data token batch cache memory key
lock map star sky cloud storm night day week month year spring summer autumn winter king queen boy girl man woman
child friend doctor teacher farmer baker hand foot head eye ear nose arm leg heart one two three four five six
seven eight nine ten big small old new young fast slow hot cold warm cool good bad happy sad quick lazy brave calm
kind wise loud quiet soft hard light dark long short high low run walk jump sing read write open close give take
make find keep play the a and over under with my your
"""

WORDS = tuple(_TEXT.split())
