"""Arrays of all datatypes, for hypothesis."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

NUMBERS = [np.bool_, np.int8, np.uint16, np.int32, np.uint64, np.float16, np.float32, np.float64]
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
bfloats = npst.arrays(np.float32, shapes).map(lambda array: array.astype(ml_dtypes.bfloat16))
texts = npst.arrays(np.object_, shapes, elements=st.binary(max_size=9))
arrays = st.one_of(st.sampled_from(NUMBERS).flatmap(lambda dtype: npst.arrays(dtype, shapes)), bfloats, texts)
