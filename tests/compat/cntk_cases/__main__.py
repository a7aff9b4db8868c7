"""Print the cases whose formula differs from CNTK 2.7. Run it under CNTK."""

import cntk
import numpy as np

from tests.compat.cntk_cases import TABLE
from tests.compat.cntk_cases.case import problems

for name in sorted(TABLE):
    for i, case in enumerate(TABLE[name]):
        for dtype in case.only or (np.float32, np.float64):
            if case.cntk:
                for problem in problems(cntk, name, case, dtype):
                    print(name, i, np.dtype(dtype).name, problem)
