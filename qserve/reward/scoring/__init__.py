"""From texts to rewards: templates, tokens, packed rows, pooling.

template.py       messages or text to the tokens that the model was trained on
pooling.py        at which tokens the head is read
rows.py           texts with a common prefix in groups, groups end to end in rows of bounded length
row_queue.py      what waits becomes rows, shared out fairly between requests
compute.py        one row, divided where memory runs out
forward.py        the body over a row, the head at the pooled tokens   (torch)
attention.py      attention over the segments of a packed row
row_pass.py       a faster pass for dense bf16 bodies on a CPU
scorer.py         all of it behind `score`
"""
