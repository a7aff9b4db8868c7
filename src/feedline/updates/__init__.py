"""How does an update change a weight? One formula for each rule, which learners and stores' optimizers share."""

from feedline.updates import formulas
from feedline.updates.formulas import Formula, complement
from feedline.updates.stages import PLAIN, UpdateStages, clipping_factors, finish, global_clipping_factor, prepared
from feedline.updates.update import update

__all__ = [
    "PLAIN",
    "Formula",
    "UpdateStages",
    "clipping_factors",
    "complement",
    "finish",
    "formulas",
    "global_clipping_factor",
    "prepared",
    "update",
]
