"""Rendezvous: how ranks in processes of one or several hosts find one another.

bootstrap.py      all of it in order
stores.py, mpi.py what ranks find one another over: torch's stores, a folder, MPI
environment.py    which rank this process is, as launchers say it
gather.py         all-gather over a store, and how everybody learns of a failure
hosts.py, nics.py what a rank says of itself; which ranks share a host; network interfaces
local.py          descriptors handed around among the ranks of a host
"""
