"""Trained reward models, loaded as they were trained and scored as they were scored in training.

items.py          what is scored and what comes out
settings.py       how: pooling, head, template, length, truncation
checkpoints/      seven formats, recognised from the files
template.py       from messages or text to the tokens that the model was trained on
load.py           body and head into memory                      (torch)
scorer.py         requests of all clients, batched and scored    (torch)
"""
