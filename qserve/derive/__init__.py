"""Checkpoints that are made from others: `merge/` puts adapters into their base. Each is planned, whole or not there.

output.py        the new folder, its files and what it takes
tensor_files.py  its tensors, in files of a few GiB
card.py          its model card
"""
