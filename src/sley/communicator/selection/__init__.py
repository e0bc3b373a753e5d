"""Selection: which plan runs for a call of a communicator.

kinds.py          kinds of calls, and the collective of each
policy.py         what a tuner has learned, as a value and a file
rules.py          the library's table: which algorithm for which sizes, and why
device_rules.py   the same for devices of one host, by simulation
replanned.py      trees for the rates of the interfaces between hosts
plans.py          the plans of a communicator, each loaded or compiled once
places.py         plans that are right in place and out of place
ready_plans.py    a proven plan that calls may use, and what it must be for that
user_plans.py     plans of the user: values, programs, files, and a folder of files
plan_folders.py   writes such a folder, with machine code of kernels
machine.py        the machine of a communicator, as policies name it
plan_cache.py     compiled plans on disk
"""
