// The thresholds of bins of one width, by the rule of histogram/histogram.hpp.

#include "histogram/histogram.hpp"
#include "histogram/linear_threshold.hpp"

namespace upsweep {

void find_linear_thresholds(float low, float high, int64_t n_bins, float* thresholds) {
  for (int64_t k = 0; k <= n_bins; ++k) thresholds[k] = linear_threshold(low, high, n_bins, k);
}
void find_linear_thresholds(double low, double high, int64_t n_bins, double* thresholds) {
  for (int64_t k = 0; k <= n_bins; ++k) thresholds[k] = linear_threshold(low, high, n_bins, k);
}

}  // namespace upsweep
