"""Reports: plans, runs and simulations as text, pages, pictures and traces for people.

Files: tables (plans and runs), stages (the result of each pass), simulation, critical (text of a
simulation), plots (a simulation as a picture), trace (Chrome's trace format), bins (sums over
time), html/ (a page), pictures/ (drawings of programs, plans and topologies), notebook (values in
Jupyter).
"""
