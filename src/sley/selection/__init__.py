"""Selection: which plan runs for a call of a communicator.

kinds.py          kinds of calls, and the collective that each is
rules.py          which algorithm for which sizes, and why
plans.py          plans made ready, once
user_plans.py     plans of the user's: values, programs, files and a folder of them
plan_cache.py     compiled plans kept on disk
"""
