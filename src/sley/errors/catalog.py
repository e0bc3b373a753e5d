"""Catalog: all rules by code, for ``sley explain`` and the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from sley.errors.diagnostic import Rule

_NAMES = """
language rescclang verifier compiler formats mscclpp schedules deployment runtime devices
communicator calls selection policy tuning torch topology simulation report
"""
_FAMILIES = tuple(import_module(f"sley.errors.{name}") for name in _NAMES.split())
"""The modules with rules."""

MERGED: Mapping[str, str] = {
    "C301": "L128",
    "C302": "C303",
    "C310": "F458",
    "C313": "P811",
    "C314": "V220",
    "D901": "D902",
    "D922": "D924 D925",
    "D931": "D932",
    "F401": "F402",
    "F403": "F552",
    "F404": "L117 L140",
    "F409": "F410",
    "F411": "F477",
    "F412": "F413 F474",
    "F415": "F416",
    "F417": "F418 F469",
    "F420": "F485",
    "F422": "F473",
    "F424": "F559",
    "F431": "F498",
    "F432": "F435 F497",
    "F434": "T610",
    "F437": "K522",
    "F440": "F500",
    "F441": "F442 F453 F456",
    "F444": "F445 F446 F447 F448 F450 F481",
    "F454": "N657",
    "F460": "P802",
    "F463": "F514",
    "F472": "F471",
    "F479": "F480",
    "F483": "F484",
    "F486": "F495",
    "F488": "F487 F489 F490 F491 F492",
    "F493": "F457 F494",
    "F501": "F502",
    "F504": "F534",
    "F507": "F532",
    "F512": "F526",
    "F520": "F521 F522 F523",
    "F550": "T609",
    "F551": "F553",
    "F554": "F558",
    "F560": "F561",
    "K506": "K526",
    "K510": "K525",
    "K519": "K505 K512",
    "K521": "K515",
    "L101": "P814",
    "L102": "L111",
    "L114": "L131",
    "L115": "L113",
    "L118": "V209",
    "L119": "L135 V218 V217",
    "L124": "L125",
    "L143": "L141 L142 L144 L145",
    "L150": "L147 L148 L149 L151 L152",
    "L153": "L154 L155",
    "N603": "N602",
    "N604": "D941",
    "N605": "N611",
    "N608": "N626",
    "N620": "N609",
    "N631": "N634",
    "N633": "B908",
    "N652": "R505",
    "P810": "P813 P812",
    "R506": "N612",
    "R508": "K511 R509",
    "R512": "B901 D929 P805 S714 B906",
    "R514": "S704 V207",
    "S701": "C311",
    "S702": "N656",
    "S705": "F459",
    "S710": "S711",
    "T607": "T606",
    "V201": "F452 P804 R510 S706",
    "V202": "F449",
    "V203": "P803 S703",
    "V208": "F455 K520",
}
"""The codes of former rules that are now cases of each rule."""

SUCCESSORS: Mapping[str, str] = MappingProxyType(
    {former: code for code, merged in MERGED.items() for former in merged.split()}
)
"""The rule in place of each former one. A former code is never used again."""

WENT: Mapping[str, str] = dict.fromkeys(("D945", "D946"), "workload files")
"""The codes of rules that went with what they were about."""


def all_rules() -> dict[str, Rule]:
    """Every rule by its code, in the order of the families."""
    rules = (value for family in _FAMILIES for value in vars(family).values())
    return {rule.code: rule for rule in rules if isinstance(rule, Rule)}
