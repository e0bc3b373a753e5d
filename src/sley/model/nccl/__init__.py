"""NCCL: its own choice for each call, the plans that it runs, and the tables of nccl-tests."""
