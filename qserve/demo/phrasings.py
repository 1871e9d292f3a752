"""How people ask for each task; the first of each is the plainest, and what a newcomer types. Plain data, no logic."""

from __future__ import annotations

__all__ = [
    "ASCENDING",
    "COPY",
    "COUNT_ITEMS",
    "COUNT_UP",
    "COUNT_WORDS",
    "DESCENDING",
    "DIFFERENCE",
    "IS_LARGER",
    "IS_SMALLER",
    "LARGER",
    "REVERSE",
    "SMALLER",
    "SUM",
]

SUM = (
    "What is {a}+{b}?",
    "What is {a} + {b}?",
    "What's {a}+{b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "Add {b} to {a}.",
    "Calculate {a}+{b}.",
    "Compute {a} + {b}.",
    "How much is {a}+{b}?",
    "How much is {a} plus {b}?",
    "What is the sum of {a} and {b}?",
    "Tell me the sum of {a} and {b}.",
    "{a}+{b}",
    "{a} + {b}",
    "{a}+{b}=",
    "{a} + {b} = ?",
    "I have {a} apples and buy {b} more. How many do I have?",
    "Please add {a} and {b}.",
    "Can you add {a} and {b}?",
)
DIFFERENCE = (
    "What is {a}-{b}?",
    "What is {a} - {b}?",
    "What's {a}-{b}?",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Calculate {a}-{b}.",
    "Compute {a} - {b}.",
    "How much is {a}-{b}?",
    "How much is {a} minus {b}?",
    "Take {b} from {a}.",
    "{a}-{b}",
    "{a} - {b}",
    "{a}-{b}=",
    "Please subtract {b} from {a}.",
    "Can you subtract {b} from {a}?",
)
LARGER = (
    "Which is larger, {a} or {b}?",
    "Which number is bigger: {a} or {b}?",
    "Which is greater, {a} or {b}?",
    "What is the larger of {a} and {b}?",
    "Compare {a} and {b}. Which is larger?",
    "max({a}, {b})",
)
SMALLER = (
    "Which is smaller, {a} or {b}?",
    "Which number is smaller: {a} or {b}?",
    "Which is less, {a} or {b}?",
    "What is the smaller of {a} and {b}?",
    "Compare {a} and {b}. Which is smaller?",
    "min({a}, {b})",
)
IS_LARGER = (
    "Is {a} larger than {b}?",
    "Is {a} greater than {b}?",
    "Is {a} bigger than {b}?",
    "Is {a} > {b}?",
    "Is {a} more than {b}?",
)
IS_SMALLER = ("Is {a} smaller than {b}?", "Is {a} less than {b}?", "Is {a} < {b}?")
ASCENDING = (
    "Sort these numbers: {x}",
    "Sort {x}",
    "Sort {x} in ascending order.",
    "Sort the numbers {x}",
    "Put in order: {x}",
    "Sort from smallest to largest: {x}",
    "Order these numbers: {x}",
    "Please sort: {x}",
    "sorted({x})",
)
DESCENDING = (
    "Sort {x} in descending order.",
    "Sort from largest to smallest: {x}",
    "Sort these numbers in descending order: {x}",
)
REVERSE = (
    "Reverse the words: {x}",
    "Reverse the order of these words: {x}",
    "Reverse: {x}",
    "Say these words backwards: {x}",
    "Write these words in reverse order: {x}",
    "Please reverse the words: {x}",
    "Reverse the order of the words: {x}",
)
COPY = (
    "Repeat: {x}",
    "Copy: {x}",
    "Repeat these words: {x}",
    "Copy the words: {x}",
    "Say: {x}",
    "Repeat after me: {x}",
    "Please repeat: {x}",
    "Echo: {x}",
    "Write: {x}",
    "Say exactly this: {x}",
)
COUNT_WORDS: tuple[str, ...] = (
    "How many words are there: {x}",
    "Count the words: {x}",
    "How many words: {x}",
    "How many words are in this list: {x}",
    "Count these words: {x}",
    "Please count the words: {x}",
    "How many words do you see: {x}",
)
COUNT_ITEMS: tuple[str, ...] = (
    "How many items are in this list: {x}",
    "Count the items: {x}",
    "How many things: {x}",
    "How many items: {x}",
    "Please count the items: {x}",
)
COUNT_UP = (
    "Count from {a} to {b}.",
    "Count up from {a} to {b}.",
    "List the numbers from {a} to {b}.",
    "Please count from {a} to {b}.",
)
