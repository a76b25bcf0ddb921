// From the numbers that name the types of x and of its gates to the types themselves; the one list of what the
// kernels that work in place are built for.
#pragma once

#include "scan/scan.hpp"
#include "common/vec.hpp"

namespace upsweep {
namespace {

// visit(T{}, G{}) with x's type, and either the same or double for the gates.
template <class Visit>
auto with_real_types(int32_t dtype, int32_t gate_dtype, Visit visit) {
  auto with_gates = [&](auto x) { return gate_dtype == kDouble ? visit(x, double{}) : visit(x, x); };
  switch (dtype) {
    case kHalf: return with_gates(Half{});
    case kBFloat: return with_gates(BFloat{});
    case kFloat: return with_gates(float{});
    default: return with_gates(double{});
  }
}

}  // namespace
}  // namespace upsweep
