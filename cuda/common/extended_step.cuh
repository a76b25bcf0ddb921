// Steps over all states: finite, infinite and NaN. Kernels that are generated at run time use the same text.
#pragma once

#include <cfloat>

#include "common/steps.cuh"
#include "all_states.cuh"
