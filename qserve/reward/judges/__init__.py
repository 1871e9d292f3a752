"""Chat models as judges: templates with slots, verdicts parsed to numbers, both orders, votes, a cache by content.

template.py       what a judge is asked and how its verdict is read (configs/judges/)
verdict.py        an answer's end, read out of the event loop and within a time
client.py         an OpenAI-compatible server, asked with bounded concurrency
judge.py          rewards of a request's texts, pointwise or by all pairs of a prompt's answers
"""
