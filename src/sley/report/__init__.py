"""Reports: plans, runs and simulations as text, pages, pictures and traces for people.

views.py        `sley.show` and `sley.draw`, and values in Jupyter
tables.py       plans, runs and the results of passes as text
simulation.py   a simulation as text: what its time goes into (analysis), what limits it, and
                its time with one thing changed (limit)
html/, plots.py a simulation as a page; as a picture
trace.py        Chrome's trace format
pictures/       drawings of programs, plans and topologies
"""
