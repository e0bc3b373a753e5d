"""Exports: policies as the files that other runtimes read.

Files: tables (the lines for NVIDIA's example tuner, RCCL's and NCCLX's), nccl_plugin with
nccl_plugin.c (a tuner plug-in in C), packages (folders of plans). `sley.tuning.policy.nccl_names`
maps recipes onto NCCL's words.
"""

from sley.tuning.policy.exports.nccl_plugin import build_plugin as build_plugin
from sley.tuning.policy.exports.nccl_plugin import nccl_plugin as nccl_plugin
from sley.tuning.policy.exports.packages import write_package as write_package
from sley.tuning.policy.exports.packages import write_plan_folder as write_plan_folder
from sley.tuning.policy.exports.tables import Export as Export
from sley.tuning.policy.exports.tables import nccl_csv as nccl_csv
from sley.tuning.policy.exports.tables import ncclx_csv as ncclx_csv
from sley.tuning.policy.exports.tables import rccl_csv as rccl_csv
