"""`qserve up --takeover`: a new service takes port and workers over from one that runs.

messages.py  what the two say to each other, and how descriptors travel with it
launched.py  what the workers were started from, and in what another start differs
handed.py    what is handed over
offer.py     the old service's side; offered.py: that service, as the offer needs it
taking.py    the new service's side; adopting.py: the runner of workers that it has taken
"""
