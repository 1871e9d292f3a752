"""Several processes of the gateway behind one port (`--gateway-processes N`), with what they have in common.

    Coordinator   in the process of `qserve up`: the one place where replicas are chosen, slots are given away, wrong
                  keys and ended sessions are told on, metrics are summed and requests are kept      coordinator.py
    Member        one gateway process as the coordinator knows it: what it holds, until it ends      member.py
    Joined        in a gateway process: what `build_gateway` takes in place of its own               joined.py
    Shared        which parts those are                                                              shared.py
    Channel       messages between the two, over a pair of sockets                                   channel.py

A gateway process relays, and asks the coordinator twice a request: for a slot at a replica, which may take as long as
the queue, and to take it back. What a process held is given back when its socket closes, however it ended.
"""
