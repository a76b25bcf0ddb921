// The thresholds of bins of one width, by the rule of histogram/histogram.hpp.

#include "histogram/keys.hpp"

namespace upsweep {
namespace {

// Integers in the order of the numbers, and back; wide enough for their differences.
__extension__ typedef __int128 Int128;
template <class T>
using Signed = std::make_signed_t<Pattern<T>>;
template <class T>
using Ordinal = std::conditional_t<sizeof(T) == 4, int64_t, Int128>;
template <class T>
inline Ordinal<T> ordinal_of(T number) {
  Signed<T> bits;
  std::memcpy(&bits, &number, sizeof(T));
  return bits < 0 ? std::numeric_limits<Signed<T>>::min() - bits : bits;
}
template <class T>
inline T number_at(Ordinal<T> ordinal) {
  const Signed<T> place = (Signed<T>)ordinal;
  const Signed<T> bits = place < 0 ? std::numeric_limits<Signed<T>>::min() - place : place;
  T number;
  std::memcpy(&number, &bits, sizeof(T));
  return number;
}

// Steps that double, from near the threshold, and halve again: a few where the numbers there are as coarse as the ends.
template <class T>
void find_thresholds(T low, T high, int64_t n_bins, T* thresholds) {
  const T bins = (T)n_bins, width = high - low;
  const Ordinal<T> least = ordinal_of(low), most = ordinal_of(high);
  thresholds[0] = low;
  for (int64_t k = 1; k < n_bins; ++k) {
    // The last bin takes what is rounded up to behind it, so that `high` reaches every bin.
    auto reaches = [&](T x) { return (x - low) * bins / width >= (T)k || x >= high; };
    const double near = (double)low + (double)width * ((double)k / (double)n_bins);
    Ordinal<T> yes = std::min(std::max(ordinal_of((T)near), least), most), no = yes;
    for (Ordinal<T> step = 1; no >= least && reaches(number_at<T>(no)); step += step) {
      yes = no;
      no = no - least < step ? least - 1 : no - step;   // least - 1: nothing below is looked at
    }
    for (Ordinal<T> step = 1; !reaches(number_at<T>(yes)); step += step) {
      no = yes;
      yes = most - yes < step ? most : yes + step;
    }
    while (yes - no > 1) {
      const Ordinal<T> middle = no + (yes - no) / 2;
      (reaches(number_at<T>(middle)) ? yes : no) = middle;
    }
    thresholds[k] = number_at<T>(yes);
  }
  thresholds[n_bins] = number_at<T>(most + 1);
}

}  // namespace

void find_linear_thresholds(float low, float high, int64_t n_bins, float* thresholds) {
  find_thresholds(low, high, n_bins, thresholds);
}
void find_linear_thresholds(double low, double high, int64_t n_bins, double* thresholds) {
  find_thresholds(low, high, n_bins, thresholds);
}

}  // namespace upsweep
