#pragma once

#include "bincount/bincount.hpp"

namespace upsweep {

struct KeyRange {
  uint64_t largest = 0;    // of the keys that are not negative
  bool any = false;        // whether there are such keys
  bool negative = false;   // whether there are others
  uint64_t any_bits = 0, all_bits = UINT64_MAX;   // set in any key, and in all
};

KeyRange range_of_keys(const CountProblem& problem);

}  // namespace upsweep
