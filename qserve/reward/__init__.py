"""Trained reward models, loaded as they were trained and scored as they were scored in training.

items.py          what is scored and what comes out
settings.py       how: pooling, head, template, length, truncation
find.py, open.py  from --reward to a checkpoint, and to a scorer that is ready
checkpoints/      the formats, recognised from the files' headers
load.py           body, head and tokenizer into memory, ready to score (torch)
weights.py        tensors by the body's own names from any layout of files, adapters merged
scoring/          templates, packed rows, pooling: texts to rewards (torch)
protocols/        what each client asks, and what it is answered
serving/          the worker's ASGI app, metrics, memory
recipe/           a model, rules and judges combined by weights in one YAML file
rules/, judges/   what they say of a response
engines.py        what an engine for reward models is to this package
evaluation/       preference files, accuracy, agreement
"""
