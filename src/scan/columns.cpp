// COLUMNS: a scan along an axis whose neighbours lie contiguous in memory.
//
//   y[t, col] = a[t, col] * y[t-1, col] + x[t, col]
//
// Bytes an element as in LINES; one multiply-add for kLanes of them. The vector runs across the columns and
// the loop walks in time, so every column is the plain loop itself: no product of gates, nothing to repair.
// kSteps steps are taken for each vector of columns before the next one, which keeps its state in a register
// meanwhile; more of them would put too many lines of a power-of-two pitch into one set of the L1.
//
// Called by the drivers (scan/driver.cpp) for a strip of columns over all steps or a block of them.

#include "common/real_types.hpp"
#include "scan/scan.hpp"
#include "common/vec.hpp"

namespace upsweep {
namespace {

constexpr int kSteps = 4;
constexpr int kRun = 64;                   // steps between two looks at how large a state may be
constexpr int64_t kAhead = 4096;           // bytes
constexpr uint64_t kMinStreamRow = 1024;   // bytes

template <class T>
inline Store how_to_store(const ColumnArgs& args) {
  // A row that fills few lines leaves its first and last one half written, which streaming pays dearly for.
  const uint64_t row = args.n_columns * sizeof(T);
  const bool rows_join = (uint64_t)args.out_stride == row && args.n_columns % kLanes == 0;
  if (!args.stream || args.out == nullptr || (row < kMinStreamRow && !rows_join)) return Store::kCached;
  const uint64_t address = (uint64_t)args.out | (uint64_t)args.out_stride;
  if (address % (kLanes * sizeof(T)) == 0) return Store::kStreamVector;
  return address % 16 == 0 && kLanes * sizeof(T) % 16 == 0 ? Store::kStream16 : Store::kCached;
}

// Column vectors that are whole, and the last one that may not be, through the same code.
template <bool Whole, class T>
inline Vec load_columns(const T* p, int count) {
  if constexpr (Whole) return load(p);
  else return load_some(p, count);
}
template <bool Whole>
inline Mask load_mask_columns(const uint8_t* p, int count) {
  if constexpr (Whole) return load_mask(p);
  else return load_mask_some(p, count);
}

template <class T, class G, bool Gated, bool HasReset>
struct Walker {
  const ColumnArgs args;   // a copy: no store to out can change it, so the loops keep it in registers

  template <bool Whole>
  inline Vec token(int64_t step, int64_t col, int count) const {
    return load_columns<Whole>((const T*)(args.x + step * args.x_stride) + col, count);
  }
  template <bool Whole>
  inline Vec gate(int64_t step, int64_t col, int count) const {
    const G* row = (const G*)(args.gates + step * args.gates_stride);
    return args.gates_shared ? broadcast(to_double(row[0])) : load_columns<Whole>(row + col, count);
  }
  template <bool Whole>
  inline Mask dropped(int64_t step, int64_t col, int count) const {
    const uint8_t* row = args.reset + step * args.reset_stride;
    return args.reset_shared ? (Mask)((row[0] ? -1 : 0) - Mask{}) : load_mask_columns<Whole>(row + col, count);
  }
  template <bool Whole, Store How = Store::kCached>
  inline void write(int64_t step, int64_t col, int count, Vec v) const {
    T* target = (T*)(args.out + step * args.out_stride) + col;
    if constexpr (Whole) store(target, v, How);
    else store_some(target, v, count);
  }

  template <bool Whole, int N, Store How>
  inline Vec advance(int64_t step, int64_t col, int count, Vec state, Vec gamma) const {
    for (int k = 0; k < N; ++k) {
      Vec x = token<Whole>(step + k, col, count);
      if constexpr (HasReset) x = as_operand(x);
      Vec before = state;
      state = fma(Gated ? gate<Whole>(step + k, col, count) : gamma, state, x);
      if constexpr (HasReset) {
        const Mask drop = dropped<Whole>(step + k, col, count);
        state = select(drop, x, state);
        before = select(drop, Vec{}, before);
      }
      if (args.out) write<Whole, How>(step + k, col, count, args.exclusive ? before : state);
    }
    return state;
  }

  // The first step of all has no state before it, and its gate is not read.
  template <bool Whole>
  inline void start(int64_t col, int count) const {
    const Vec x = as_operand(token<Whole>(0, col, count));
    store_some(args.carry + col, x, count);
    if (args.out) write<Whole>(0, col, count, args.exclusive ? Vec{} : x);
  }

  // How far to ask ahead: the next steps, and at least kAhead bytes where rows are short.
  inline int64_t steps_ahead() const {
    const int64_t row = args.n_columns * (int64_t)sizeof(T);
    return row >= kAhead / kSteps ? kSteps : kAhead / row;
  }

  // The steps after these: a row of the next step lies on another page, where no hardware prefetcher looks.
  template <int N>
  inline void prefetch(int64_t step, int64_t col) const {
    for (int k = 0; k < N; ++k) {
      __builtin_prefetch(args.x + (step + k) * args.x_stride + col * (int64_t)sizeof(T));
      if (Gated) __builtin_prefetch(args.gates + (step + k) * args.gates_stride + col * (int64_t)sizeof(G));
    }
  }

  template <int N, Store How>
  inline void advance_all(int64_t step) const {
    const int64_t whole = args.n_columns - args.n_columns % kLanes;
    const int rest = (int)(args.n_columns - whole);
    for (int64_t col = 0; col < whole; col += kLanes) {
      const Vec gamma = Gated ? Vec{} : load(args.gamma + col);
      prefetch<N>(step + steps_ahead(), col);
      store(args.carry + col, advance<true, N, How>(step, col, kLanes, load(args.carry + col), gamma));
    }
    if (rest) {
      const Vec gamma = Gated ? Vec{} : load_some(args.gamma + whole, rest);
      const Vec state = load_some(args.carry + whole, rest);
      store_some(args.carry + whole, advance<false, N, How>(step, whole, rest, state, gamma), rest);
    }
  }

  template <Store How>
  void walk(int64_t step) const {
    for (; step + kSteps <= args.n_steps; step += kSteps) advance_all<kSteps, How>(step);
    for (; step < args.n_steps; ++step) advance_all<1, How>(step);
  }

  void run() const {
    int64_t step = 0;
    if (args.first && args.n_steps > 0) {
      const int64_t whole = args.n_columns - args.n_columns % kLanes;
      for (int64_t col = 0; col < whole; col += kLanes) start<true>(col, kLanes);
      if (whole < args.n_columns) start<false>(whole, (int)(args.n_columns - whole));
      step = 1;
    }
    switch (how_to_store<T>(args)) {
      case Store::kCached: return walk<Store::kCached>(step);
      case Store::kStream16: return walk<Store::kStream16>(step);
      case Store::kStreamVector: return walk<Store::kStreamVector>(step);
    }
  }

  // (multiplier, value) of every column; the loop is the scan's, with a product beside the state. N vectors of
  // columns go together: one alone would wait for its own multiply-add at every step. What may overflow on the way
  // is bounded from what stands after each run of kRun steps, the largest gate, and, of float64, the largest token.
  template <bool Whole, int N>
  void reduce_columns(int64_t col, int count, Reduced* lanes) const {
    Vec gamma[N], value[N], product[N], smallest[N], largest[N], largest_token[N];
    Vec most_product[N], most_value[N];
    Mask vanished[N];   // a product too small for a number: how far it grows from there is not known
    for (int k = 0; k < N; ++k) {
      gamma[k] = Gated ? Vec{} : load_columns<Whole>(args.gamma + col + k * kLanes, count);
      value[k] = largest[k] = largest_token[k] = most_value[k] = Vec{};
      product[k] = most_product[k] = broadcast(1.0), smallest[k] = broadcast(__builtin_inf()), vanished[k] = Mask{};
    }
    auto advance = [&](int64_t step) __attribute__((always_inline)) {
      for (int k = 0; k < N; ++k) {
        const int64_t at = col + k * kLanes;
        const Vec x = as_operand(token<Whole>(step, at, count));
        Vec a = Gated ? gate<Whole>(step, at, count) : gamma[k];
        Vec next = step ? fma(a, value[k], x) : x;   // no state yet: whatever the gate is, it multiplies nothing
        if constexpr (HasReset) {
          const Mask drop = dropped<Whole>(step, at, count);
          next = select(drop, x, next);
          a = select(drop, Vec{}, a);
        }
        value[k] = next;
        if constexpr (sizeof(T) == 8) largest_token[k] = max(abs(x), largest_token[k]);
        if constexpr (Gated || HasReset) {
          const Vec size = abs(a);
          product[k] = product[k] * a;
          smallest[k] = min(size, smallest[k]);
          largest[k] = max(size, largest[k]);
        }
      }
    };
    for (int64_t start = 0; start < args.n_steps; start += kRun) {
      const int64_t end = start + kRun < args.n_steps ? start + kRun : args.n_steps;
      for (int64_t step = start; step < end; ++step) advance(step);
      for (int k = 0; k < N; ++k) {
        most_value[k] = max(abs(value[k]), most_value[k]);
        if constexpr (Gated) {
          const Vec size = abs(product[k]);
          most_product[k] = max(size, most_product[k]);
          vanished[k] |= (Mask)(size < kSmallest) & (Mask)(smallest[k] != 0.0);
        }
      }
    }
    for (int k = 0; k < N; ++k)
      for (int lane = 0; lane < count; ++lane) {
        Reduced& result = lanes[col + k * kLanes + lane];
        const double power = Gated ? 1.0 : __builtin_pow(gamma[k][lane], (double)args.n_steps);
        const double gate = Gated ? largest[k][lane] : __builtin_fabs(gamma[k][lane]);
        const double within = gate <= 1.0 ? 1.0 : __builtin_pow(gate, kRun);
        const double grows = Gated ? within * most_product[k][lane] : gate <= 1.0 ? 1.0 : __builtin_fabs(power);
        const double token = sizeof(T) == 8 ? largest_token[k][lane] : kNarrowToken;
        const double reaches = within * (most_value[k][lane] + kRun * token);
        if constexpr (Gated || HasReset) {
          const bool in_order = vanished[k][lane] && gate > 1.0;
          result = {product[k][lane], value[k][lane], smallest[k][lane], largest[k][lane], grows, reaches, in_order};
        } else {
          result = {power, value[k][lane], gate, gate, grows, reaches, false};
        }
      }
  }

  void reduce(Reduced* lanes) const {
    constexpr int kTogether = 4;
    int64_t col = 0;
    for (; col + kTogether * kLanes <= args.n_columns; col += kTogether * kLanes)
      reduce_columns<true, kTogether>(col, kLanes, lanes);
    for (; col + kLanes <= args.n_columns; col += kLanes) reduce_columns<true, 1>(col, kLanes, lanes);
    if (col < args.n_columns) reduce_columns<false, 1>(col, (int)(args.n_columns - col), lanes);
  }
};

template <class T, class G, bool Gated, bool HasReset>
Walker<T, G, Gated, HasReset> walker(const ColumnArgs& args) {
  return {args};
}

template <class T, class G>
void scan(const ColumnArgs& args) {
  if (args.gates)
    return args.reset ? walker<T, G, true, true>(args).run() : walker<T, G, true, false>(args).run();
  return args.reset ? walker<T, G, false, true>(args).run() : walker<T, G, false, false>(args).run();
}
template <class T, class G>
void reduce(const ColumnArgs& args, Reduced* lanes) {
  if (args.gates)
    return args.reset ? walker<T, G, true, true>(args).reduce(lanes) : walker<T, G, true, false>(args).reduce(lanes);
  return args.reset ? walker<T, G, false, true>(args).reduce(lanes) : walker<T, G, false, false>(args).reduce(lanes);
}

}  // namespace

ColumnKernels column_kernels(int32_t dtype, int32_t gate_dtype) {
  return with_real_types(dtype, gate_dtype, [](auto x, auto gate) -> ColumnKernels {
    return {scan<decltype(x), decltype(gate)>, reduce<decltype(x), decltype(gate)>};
  });
}

}  // namespace upsweep
