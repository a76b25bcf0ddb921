// ROWS: counts, or sums of weights, of many rows, each straight into its own part of the result.
//
// Bytes a key: its own size and its weights', read once, and the result's. Where neighbouring rows share cache lines
// (the keys of a row are further apart than the rows), as many of them as a line holds are taken together, block by
// block. A long row of counts in few bins goes through tables, as a single row does.
//
// Called by the driver. A row's numbers are added in the keys' order.

#include "bincount/rows.hpp"

namespace upsweep {
namespace {

constexpr int64_t kRowsTask = 1 << 15;       // keys, and numbers of the result, of a task
constexpr int64_t kTogether = 16;            // rows that share cache lines
constexpr int64_t kLongRow = 4096;           // keys
constexpr int64_t kFewBins = 2048;           // of such a row's tables
constexpr int kRowTables = 4;

template <class Key>
inline void count_row_block(const char* keys, int64_t stride, int64_t n, int64_t* counts, uint64_t valid) {
  for (int64_t at = 0; at < n; ++at, keys += stride)
    if (const uint64_t bin = index_at<Key>(keys, 0); bin < valid) ++counts[bin];
}

template <class Key>
inline void count_long_row(const Row& row, int64_t n_keys, int64_t* counts, int64_t n_bins, uint64_t valid,
                           uint32_t* tables) {
  const int64_t stride = n_bins + 1 + kSlack;
  std::fill_n(tables, kRowTables * stride, 0u);
  int64_t n_counted = 0;
  auto fold = [&] {
    for (int table = 0; table < kRowTables; ++table)
      for (int64_t bin = 0; bin < n_bins; ++bin) counts[bin] += tables[table * stride + bin];
  };
  each_block<Key>(row, 0, n_keys, [&](const char* keys, int64_t, int64_t n) {
    for (int64_t at = 0; at < n; ++at) {
      const uint64_t bin = index_at<Key>(keys, at);
      ++tables[at % kRowTables * stride + (int64_t)(bin < valid ? bin : (uint64_t)n_bins)];
    }
    if ((n_counted += n) >= INT64_C(1) << 31) fold(), std::fill_n(tables, kRowTables * stride, 0u), n_counted = 0;
    return true;
  });
  fold();
}

template <class Key, class T>
inline void add_row_block(const char* keys, int64_t n, const T* terms, int64_t width, T* sums, uint64_t valid) {
  for (int64_t at = 0; at < n && width == 1; ++at)
    if (const uint64_t bin = index_at<Key>(keys, at); bin < valid) sums[bin] += terms[at];
  for (int64_t at = 0; at < n && width > 1; ++at) {
    const uint64_t bin = index_at<Key>(keys, at);
    if (bin >= valid) continue;
    T* to = sums + (int64_t)bin * width;
    for (int64_t k = 0; k < width; ++k) to[k] += terms[at * width + k];
  }
}

template <class Key, class T>
void run(const CountProblem& p, T* result, int64_t n_bins, bool overwrite, int n_threads) {
  constexpr bool kCounts = std::is_same_v<T, int64_t>;
  const uint64_t valid = valid_bins(p.key_dtype, n_bins);
  const int64_t width = kCounts ? 1 : p.n_sums * (is_complex(p.weight_dtype) ? 2 : 1);
  const bool tables = kCounts && p.n >= kLongRow && n_bins <= kFewBins;
  const int64_t row_stride = p.n_dims ? p.key_row_strides[p.n_dims - 1] : 0;
  // Rows that lie inside each other's cache lines; the block of keys that they share stays in the second cache.
  const bool shared = p.n > 1 && std::abs(row_stride) < std::abs(p.key_stride) && row_stride != 0;
  const int64_t together = shared && !tables ? kTogether : 1;
  const int64_t block_size = std::max<int64_t>(1, std::min(kBlock, kBlock / width));
  // Native keys are counted where they lie: a block's copy took as long as its count (Zen 4, keys of 8 bits).
  const bool in_place = p.key_swapped == 0 && p.key_shift == 0;
  const int64_t row_work = p.n * width + n_bins * width;
  const int64_t group = std::max<int64_t>(together, kRowsTask / std::max<int64_t>(1, row_work) / together * together);
  const int64_t n_tasks = (p.n_rows + group - 1) / group;
  n_threads = (int)std::min<int64_t>(n_threads, n_tasks);
  std::vector<Scratch<uint32_t>> scratch(n_threads);
  std::vector<Scratch<T>> buffers(n_threads);
  for (int thread = 0; thread < n_threads; ++thread) {
    if (tables) scratch[thread] = new_scratch<uint32_t>(kRowTables * (n_bins + 1 + kSlack));
    if (!kCounts) buffers[thread] = new_scratch<T>(std::max(kBlock, width));
  }
  for_tasks(n_tasks, n_threads, false, [&](int64_t task, int thread) {
    Unsigned<Key> key_buffer[kBlock];
    const int64_t end = std::min(p.n_rows, (task + 1) * group);
    if (overwrite) std::fill(result + task * group * n_bins * width, result + end * n_bins * width, T(0));
    for (int64_t first_row = task * group; first_row < end; first_row += together) {
      const int n_together = (int)std::min(together, end - first_row);
      Row rows[kTogether];
      for (int k = 0; k < n_together; ++k) rows[k] = row_of(p, first_row + k);
      if (tables) {
        if constexpr (kCounts)
          count_long_row<Key>(rows[0], p.n, result + first_row * n_bins, n_bins, valid, scratch[thread].get());
        continue;
      }
      for (int64_t first = 0; first < p.n; first += block_size) {
        const int64_t n = std::min(block_size, p.n - first);
        for (int k = 0; k < n_together; ++k) {
          T* to = result + (first_row + k) * n_bins * width;
          if constexpr (kCounts) {
            if (in_place)
              count_row_block<Key>(rows[k].keys + first * p.key_stride, p.key_stride, n, to, valid);
            else
              count_row_block<Key>(read_block<Key>(rows[k], first, n, key_buffer), sizeof(Key), n, to, valid);
          } else {
            const char* keys = read_block<Key>(rows[k], first, n, key_buffer);
            add_row_block<Key, T>(keys, n, weights_of<T>(p, first_row + k).read(first, n, buffers[thread].get()),
                                  width, to, valid);
          }
        }
        poll_blocks(first / block_size);
      }
    }
  });
}

}  // namespace

template <class T>
void count_rows(const CountProblem& p, T* result, int64_t n_bins, bool overwrite, int n_threads) {
  with_key_width(p.key_dtype, [&](auto key) { run<decltype(key), T>(p, result, n_bins, overwrite, n_threads); });
}
template void count_rows(const CountProblem&, int64_t*, int64_t, bool, int);
template void count_rows(const CountProblem&, double*, int64_t, bool, int);
template void count_rows(const CountProblem&, uint64_t*, int64_t, bool, int);

}  // namespace upsweep
