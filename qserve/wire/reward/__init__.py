"""Requests to reward models, one pydantic model for each format.

Paths that two systems share have one model with the fields of both (`/classify`, `/rerank`), told apart by the field
that only one of them has. Read from public source: vLLM 0.32 `entrypoints/pooling`, SGLang `EmbeddingReqInput`,
text-embeddings-inference `router/src/http/types.rs`, OpenRLHF `utils/remote_rm_utils.py`, verl `reward_loop.py`,
LLaMA-Factory `api/protocol.py`, ms-swift's deployed reward models.

messages.py       turns
fields.py         what several of them share
native.py         /v1/reward
classifiers.py    /classify, /pooling, /v1/embeddings, /predict
rankers.py        /score, /rerank
vectors.py        /v1/embeddings of an embedding model
trainers.py       /get_reward, /v1/score/evaluation, /v1/chat/completions
table.py          the table of all: paths, schemas, summaries
"""
