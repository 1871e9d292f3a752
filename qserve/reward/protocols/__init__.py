"""What clients of other systems say, as one job for the scorer, and its scores in their words again. Pure: no I/O.

job.py            the job that every protocol comes down to
table.py          path and request to job
native.py         qserve's own /v1/reward
vllm.py           /classify, /pooling, /score, /rerank, and /v1/embeddings as verl uses it
sglang.py         /classify with `text` or `input_ids`
tei.py            /predict, and /rerank with `texts`
trainers.py       OpenRLHF, LLaMA-Factory, ms-swift
"""
