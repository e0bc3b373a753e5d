"""IR: the immutable values of sley's stages, as NumPy columns.

`tables` and `words` are their ground. The stages: `collective` (the standard ones:
`collectives`), `program` (its lines: `sources`), `dag` and `plan`; `faults` and `connections` of a
plan, `conditions` of its proof. A cluster: `topology`, with `fabric`, `routes` and `cost_model`.
Which plan runs for which calls: `plan_table`, of `recipe`s and ranges of `sizes`.
`graph` and `choices` are helpers; `methods` are those of packages above.
"""
