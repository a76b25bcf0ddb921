// The threshold of one bin of torch.histc's rule (histogram/histogram.hpp). The CPU (histogram/thresholds.cpp) and CUDA
// (cuda/bincount/uniform.cuh) compile the same text, so that both find the same bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define UPSWEEP_HOST_DEVICE __host__ __device__
#else
#define UPSWEEP_HOST_DEVICE
#endif

namespace upsweep {
namespace {

// Integers in the order of the numbers, and back. Their differences fit into 64 bits without a sign.
template <class T>
using SignedBits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T>
UPSWEEP_HOST_DEVICE inline int64_t ordinal_of(T number) {
  constexpr int64_t kSignBit = sizeof(T) == 4 ? INT32_MIN : INT64_MIN;
  SignedBits<T> bits;
  memcpy(&bits, &number, sizeof(T));
  return bits < 0 ? kSignBit - bits : bits;
}
template <class T>
UPSWEEP_HOST_DEVICE inline T number_at(int64_t ordinal) {
  constexpr int64_t kSignBit = sizeof(T) == 4 ? INT32_MIN : INT64_MIN;
  const auto bits = static_cast<SignedBits<T>>(ordinal < 0 ? kSignBit - ordinal : ordinal);
  T number;
  memcpy(&number, &bits, sizeof(T));
  return number;
}

// Steps that double, from near the threshold, and halve again: a few where the numbers there are as coarse as the ends.
template <class T>
UPSWEEP_HOST_DEVICE inline T linear_threshold(T low, T high, int64_t n_bins, int64_t k) {
  const T bins = static_cast<T>(n_bins), width = high - low;
  const int64_t least = ordinal_of(low), most = ordinal_of(high);
  if (k == 0) return low;
  if (k == n_bins) return number_at<T>(most + 1);
  // The last bin takes what is rounded up to behind it, so that `high` reaches every bin.
  const auto reaches = [=](int64_t ordinal) {
    const T x = number_at<T>(ordinal);
    return (x - low) * bins / width >= static_cast<T>(k) || x >= high;
  };
  const double near = double(low) + double(width) * (double(k) / double(n_bins));
  int64_t yes = ordinal_of(static_cast<T>(near));
  if (yes < least) yes = least;
  if (yes > most) yes = most;
  int64_t no = yes;
  for (uint64_t step = 1; no >= least && reaches(no); step += step) {
    yes = no;
    no = uint64_t(no) - uint64_t(least) < step ? least - 1 : int64_t(no - step);   // nothing below `least` is looked at
  }
  for (uint64_t step = 1; !reaches(yes); step += step) {
    no = yes;
    yes = uint64_t(most) - uint64_t(yes) < step ? most : int64_t(yes + step);
  }
  while (uint64_t(yes) - uint64_t(no) > 1) {
    const int64_t middle = int64_t(no + (uint64_t(yes) - uint64_t(no)) / 2);
    (reaches(middle) ? yes : no) = middle;
  }
  return number_at<T>(yes);
}

}  // namespace
}  // namespace upsweep
