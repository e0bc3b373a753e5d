"""Rendezvous: how ranks in processes of one or several hosts find one another.

bootstrap.py      the whole meeting, in order
stores.py         what ranks find one another over: a folder, torch's stores, MPI
environment.py    which rank this process is, as launchers say it
gather.py         all-gather over a store, and how everybody learns of a failure
hosts.py, nics.py what a rank says of itself; which ranks share a host; network interfaces
local.py          descriptors handed around among the ranks of a host
"""
