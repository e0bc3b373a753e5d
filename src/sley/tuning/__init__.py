"""Tuning: learns which plan and which options to use for a call (DynamICCL; GC3, section 12).

Files: arms (the choices), tally (what was measured of them), nccl (NCCL's own choice, the
baseline), nccl_graphs (the rings and trees that NCCL makes of a machine), nccl_runs (simulations of
its choices), sweep (the times of all choices, and the oracle), arrays (files of sweeps and
checkpoints), noise, worlds (degraded clusters), backends (what measures a call), live (measures
calls on this machine), agents (what learns), gate (keeps agents from regressions), training
(rounds, checkpoints, what a policy gets), online (decides for each call, and finds changes),
evaluate (learning curves), pictures, steps (the time of a workload's step), environment (tuning in
Gymnasium), levels (a decision in three steps), state (what is observed), reward, exploration (how
many calls explore), nccl_tests (the tables that nccl-tests prints), table_fit (a topology fitted to
them).
"""
