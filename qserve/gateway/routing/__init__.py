"""Choice of a replica: pure arithmetic over loads and prefixes, without clocks or I/O.

`prefix` remembers what each replica was given lately, `outstanding` estimates how many tokens a request costs, `choice`
weighs the two, `router` puts them together, `poison` finds requests that crash workers.
"""
