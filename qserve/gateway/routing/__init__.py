"""Choice of a replica: pure arithmetic over loads and prefixes, without clocks or I/O.

`prefix` remembers what each replica was given lately, `choice` weighs that and the load, `router` estimates what a
request costs and puts them together, `pace` says what it will take of time, `poison` finds requests that crash workers.
"""
