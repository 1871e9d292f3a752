"""Workers on the machines of a Ray cluster: `qserve up --ray auto|HOST:PORT`.

Ray places and ends them and relays nothing: requests go from the gateway to a worker's TCP port.

`join` attaches to a cluster that is there; `nodes` and `probe` say what its nodes have, `layout` plans over them;
`placement` finds a node for a replica, `agent` is the actor there, which holds the worker and its lease; `worker` is
the service's side of it, `runner` makes those, and `scaling` says how many are wanted.
"""
