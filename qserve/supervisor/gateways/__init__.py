"""Where the gateway of a service runs: in the process of `qserve up`, or in several of their own behind its port."""
