"""Environments beside qserve's own, for tools that want other versions of the same packages (`qserve env`).

requirements.py  what each has: configs/environments/NAME.txt
place.py         where each is, below the state folder, and in which state
making.py        made by venv and pip, whole or not there, by one process at a time
"""
