"""MSCCL++ execution plans (JSON).

`header`: what MSCCL++ compares with a call before it runs a plan.
"""
