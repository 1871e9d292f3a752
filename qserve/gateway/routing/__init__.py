"""Choice of a replica: pure arithmetic over loads and prefixes, without clocks or I/O.

`prefix` remembers what each replica was given lately, `outstanding` estimates how many tokens a request costs, `choice`
weighs the two, `router` puts them together, `deadly` knows requests that were in flight when workers died.
"""
