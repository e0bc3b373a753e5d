"""Rendezvous: how ranks in processes of one or several hosts find one another.

bootstrap.py      the whole rendezvous, in order
stores.py         where ranks leave messages at the start: a folder, torch's stores, MPI
environment.py    rank, number of ranks and store, from the launcher's variables
gather.py         all-gather over a store, which also passes failures to all ranks
hosts.py, nics.py descriptions of ranks; which ranks share a host; network interfaces
survey.py         over which interfaces hosts reach one another, and at what rates
local.py          descriptors exchanged among the ranks of a host
"""
