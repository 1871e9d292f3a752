"""Rows of data sets, in the formats that trainers read: conversations, preferences, tools.

fields.py         one row, which of its fields were read, and `RowError`
turns.py          turns of any format as chat templates take them
tools.py          calls of tools, and the tools themselves
marks.py          whether a turn is trained on
human.py          texts of turns that begin with "Human:" and "Assistant:"
conversation.py   a row's turns: what is asked, what is answered
sides.py          where a preference has its better and its worse answers
columnar.py       rows of Parquet and Arrow as they were written
preference.py     a preference: one prompt, better and worse answers

Pure functions over JSON. `qserve train`, `score`, `eval-reward`, `reward check` and `/v1/reward` read by them.
"""
