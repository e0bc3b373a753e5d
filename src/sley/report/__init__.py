"""Reports: plans, runs and simulations as text, pages, pictures and traces for people.

views.py                  `sley.show` and `sley.draw`, and values in Jupyter
tables.py, stages.py      plans and runs as text; the result of each pass
simulation.py             a simulation as text: its critical path (critical), what limits it
                          (limit), its time with one thing changed (what_if), groups of ranks
                          (alike) and of links (link_classes), sums over time (bins)
html/, plots.py           a simulation as a page; as a picture
trace.py                  Chrome's trace format
pictures/                 drawings of programs, plans and topologies
"""
