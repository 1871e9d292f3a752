"""Whose turn it is where work of several clients waits for few places; of both workers.

turns.py   clients by the time that theirs has taken, and within a client its requests. Pure
places.py  the same for callers that hold a place
"""
