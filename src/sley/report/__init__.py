"""Reports: plans, runs and simulations as text, pages, pictures and traces for people.

Files: tables (plans and runs), stages (the result of each pass), simulation (a simulation as text),
critical (its critical path), limit (what limits it), what_if
(its time with one thing changed), alike (groups of ranks), link_classes (groups
of links), plots (a simulation as a picture), trace (Chrome's trace format), bins (sums over time),
html/ (a page), pictures/ (drawings of programs, plans and topologies), notebook (values in
Jupyter).
"""
