"""The MSCCL XML files of other tools and vendors that tests run, if they are installed."""

OTHERS = (
    "amd_32",
    "ncv4-ag_hier_4_LL",
    "ncv4-ar_hier_12_Simple",
    "ncv4-ar_tree_12_LL",
    "ndv4-a2a2ll",
    "ndv4-ag-16m",
    "ndv4-ag-1k-512k",
    "ndv4-ap2ll",
    "rccl-alltoall-8n-0-9kb",
)
