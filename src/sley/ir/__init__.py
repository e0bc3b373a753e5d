"""IR: the immutable values of sley's stages, as NumPy columns.

tables.py, words.py                 their ground: values made of columns; the words of all stages
collective.py, collectives.py       what a collective promises; the standard ones
program.py, sources.py              transfers in the order of their meaning; their source lines
dag.py, dependencies.py             the stages between a program and a plan; the first of them
plan.py, one_sided.py               thread blocks with instructions, of sley and of MSCCL++
connections.py, faults.py           a plan's messages; what may be wrong in its tables
cut.py, groups.py                   the elements of chunks; the same plan without switches
happens_before.py                   the order of a plan's instructions, and its conflicts
orders.py                           the trees in which ranks' data are summed
conditions.py                       what a proof demands of a call
topology.py, fabric.py, routes.py   a cluster, its devices and links, and the ways along them
cost_model.py                       the parameters of a cluster's times
plan_digest.py                      a digest of what a plan does, and its parts
graph.py, linear.py                 algorithms on directed graphs; linear programs
plan_table.py                       which plan runs for which calls; what makes a plan
sizes.py                            sizes and ranges of them
extension.py                        the compiled modules, loaded at their first use
"""
