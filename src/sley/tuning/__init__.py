"""Tuning: learns which plan and which options to use for a call.

Files: nccl (NCCL's own choice, the baseline), nccl_graphs (the rings and trees that NCCL makes of a
machine).
"""
