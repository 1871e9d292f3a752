"""Request formats of other systems: each is translated to a scoring job and its scores back. Pure: no I/O.

job.py            the job that every protocol comes down to
table.py          the jobs of all protocols, by path
native.py         qserve's own /v1/reward
vllm.py           /classify, /pooling, /score, /rerank, and /v1/embeddings as verl uses it
sglang.py         /classify with `text` or `input_ids`
tei.py            /predict, and /rerank with `texts`
trainers.py       OpenRLHF, LLaMA-Factory, ms-swift
shared_paths.py   /classify and /rerank, by whose request it is
chatml.py         templated texts taken apart
"""
