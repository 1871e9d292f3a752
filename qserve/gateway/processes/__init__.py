"""Several gateway processes behind one port (`--gateway-processes N`), and their shared state.

    Coordinator   in the process of `qserve up`: chooses replicas, grants slots, forwards wrong keys and ended
                  sessions, sums metrics and stores requests                                         coordinator.py
    Member        one gateway process in the coordinator: the slots it holds                         member.py
    HostedRuns    background responses of all of them                                                hosted_runs.py
    CoordinatorClient   the same in a gateway process: provides what `build_gateway` takes   coordinator_client.py
    Shared        the parts of a gateway that are shared                                             shared.py
    Channel       messages between the two, over a pair of sockets                                   channel.py

For each request a gateway process sends the coordinator two messages: to get a slot at a replica, which may wait in
the queue, and to give it back. When its socket closes, all its slots are given back.
"""
