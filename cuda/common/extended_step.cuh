// Steps over all states: finite, infinite and NaN. Kernels that are generated at run time use the same text.
#pragma once

#include <cfloat>

#include "common/steps.cuh"
#include "all_states.cuh"

namespace upsweep {

// An ExtendedRun in a fraction of the instructions, where all products of gates are ordinary numbers and sums are finite.
struct OrdinaryRun {
  double a = 1.0, b = -0.0, least = 1.0, most = 1.0;   // the least and the largest product

  __device__ void add(double gate, double x) {
    b = advance(gate, b, x);
    a = product(gate, a);
    least = fmin(least, fabs(a));
    most = fmax(most, fabs(a));
  }
  // False: only ExtendedRun has the step.
  __device__ bool is_step(ExtendedStep* step) const {
    using Range = StateRange<double>;
    if (!is_finite(a) || !is_finite(b) || !is_normal(least) || !is_finite(most)) return false;
    *step = {significand_of(a),
             b,
             static_cast<int16_t>(exponent_of(a)),
             static_cast<int16_t>(Range::kLowest - exponent_of(least)),
             static_cast<int16_t>(Range::kHighest - exponent_of(most)),
             0};
    step->set_form(ExtendedStep::kFinite, a > 0 ? kSame : kMinus | kPlus << 2 | kNone << 4, 0, 0);
    return true;
  }
};

}  // namespace upsweep
