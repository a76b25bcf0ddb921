// Runs a compiled reduction over pairs: packs, deals tasks to threads, combines and writes.
//
// Called by bindings/_pairs.pyx with the GIL released.
#include <algorithm>
#include <cstring>

#include "common/buffer.hpp"
#include "pairs/pairs.hpp"
#include "pairs/pack.hpp"
#include "pairs/states.hpp"
#include "common/parallel.hpp"

namespace upsweep {
namespace {

constexpr double kThreadCost = 150000;   // instructions below which a thread costs more than it saves
constexpr double kCallCost = 1 << 24;    // instructions of one call of a compiled tile: a few milliseconds

template <class Number, class Accumulator>
class Run {
 public:
  explicit Run(const PairProblem& problem)
      : problem(problem), kernel(*problem.kernel), states{kernel},
        numbers(n_numbers(kernel)), indices(n_indices(kernel)), written(n_written(kernel)) {
    n_entries = 1;
    for (int32_t d = 0; d < problem.n_batch_dims; ++d) n_entries *= problem.batch[d];
    double cost = 0;
    int64_t n_groups = 0;
    for (int64_t e = 0; e < n_entries; ++e) {
      const PairPlan& plan = plan_of(e);
      cost += plan.cost;
      n_groups += n_groups_of(plan);
      wants_rows |= !plan.lanes_are_columns;
      wants_columns |= plan.lanes_are_columns != 0;
    }
    const double columns = kCallCost / (kernel.cost * (double)std::max<int64_t>(kernel.k, 1));
    columns_per_call = std::max<int64_t>((int64_t)columns / kPieceUnit, 1) * kPieceUnit;
    n_threads = (int)std::max<int64_t>(1, std::min({problem.n_threads, (int64_t)(cost / kThreadCost), n_groups}));
  }

  void all() {
    pack();
    for (int64_t e = 0; e < n_entries; ++e)
      if (!plan_of(e).covers) write_nothing(e);
    if (plan_of(0).n_partials == 0 && problem.plans.size() == 1) {
      tasks(0, n_entries, nullptr, nullptr);
      return;
    }
    for (int64_t e = 0; e < n_entries; ++e) {   // states of pieces are kept for one entry at a time
      const PairPlan& plan = plan_of(e);
      Buffer<double> partials((size_t)(plan.n_partials * numbers));
      Buffer<int64_t> partial_indices((size_t)(plan.n_partials * indices));
      tasks(e, e + 1, partials.data(), partial_indices.data());
      gather(e, partials, partial_indices);
    }
  }

 private:
  const PairProblem& problem;
  const PairKernel& kernel;
  const States<Number, Accumulator> states;
  const int64_t numbers, indices, written;
  int64_t n_entries = 1;
  int64_t columns_per_call = 0;   // of a compiled tile, before the worker polls
  int n_threads = 1;
  bool wants_rows = false, wants_columns = false;
  // Rows for lanes and column records, or row records and columns for lanes; seldom both.
  Packed<Number> lane_rows, records, row_records, lane_columns;
  Buffer<Number> params;

  const PairPlan& plan_of(int64_t e) const { return *problem.plans[problem.plans.size() == 1 ? 0 : (size_t)e]; }
  static int64_t n_groups_of(const PairPlan& plan) { return std::max<int64_t>(0, (int64_t)plan.groups.size() - 1); }

  const char* entry_of(const PairOperand& operand, int64_t e) const {
    const char* source = operand.data;
    for (int32_t d = problem.n_batch_dims - 1; d >= 0; --d) {
      source += e % problem.batch[d] * operand.batch_strides[d];
      e /= problem.batch[d];
    }
    return source;
  }

  // Whether every batch entry has the same numbers: they are packed once then.
  bool shared(const std::vector<PairOperand>& operands) const {
    for (const PairOperand& operand : operands)
      for (int32_t d = 0; d < problem.n_batch_dims; ++d)
        if (problem.batch[d] > 1 && operand.batch_strides[d] != 0) return false;
    return true;
  }

  void pack_one(Packed<Number>& packed, const std::vector<PairOperand>& operands, int64_t n, int64_t width, bool lanes,
                Prepare prepare = nullptr) {
    const bool once = shared(operands) && (!prepare || shared(problem.params));
    const int64_t entries = once ? 1 : n_entries;
    packed.prepare(n, width, entries, lanes, kernel.lanes);
    const int64_t chunks = packed.n_chunks();
    for_tasks(entries * chunks, chunks * entries > 8 ? n_threads : 1, false, [&](int64_t task, int) {
      const int64_t e = task / chunks, chunk = task % chunks;
      for (const PairOperand& operand : operands) packed.pack(operand, entry_of(operand, e), e, chunk);
      if (prepare)
        prepare(packed.record(e, packed.chunk_begin(chunk)), packed.stride, params.data() + e * kernel.param_width,
                packed.chunk_size(chunk));
    });
    if (once) packed.entry_size = 0;
  }

  void pack() {
    params.resize((size_t)(kernel.param_width * n_entries));
    for (int64_t e = 0; e < n_entries; ++e)
      for (const PairOperand& operand : problem.params) {
        const char* source = entry_of(operand, e);
        Number* const to = params.data() + e * kernel.param_width + operand.offset;
        for (int64_t f = 0; f < operand.dim; ++f)
          to[f] = *reinterpret_cast<const Number*>(source + f * operand.feature_stride);
      }
    const int64_t width = kernel.column_width + kernel.n_prepared;
    if (wants_rows) {
      pack_one(lane_rows, problem.rows, problem.n_rows, kernel.row_width, true);
      pack_one(records, problem.columns, problem.n_columns, width, false, kernel.prepare_records);
    }
    if (wants_columns) {
      pack_one(row_records, problem.rows, problem.n_rows, kernel.row_width, false);
      pack_one(lane_columns, problem.columns, problem.n_columns, width, true, kernel.prepare_lanes);
    }
  }

  // Memory of one worker: a tile's state and workspace, a row's state, another, and room to merge two.
  struct Scratch {
    Buffer<char> state, workspace;
    Buffer<double> numbers;
    Buffer<int64_t> indices;
  };

  void tasks(int64_t first_entry, int64_t end_entry, double* partials, int64_t* partial_indices) {
    const PairPlan& plan = plan_of(first_entry);
    const int64_t groups = n_groups_of(plan);
    std::vector<Scratch> scratch((size_t)n_threads);
    for (Scratch& own : scratch) {
      own.state.resize((size_t)(n_slots(kernel) * kSlotBytes * kernel.lanes));
      own.workspace.resize((size_t)kernel.workspace);
      own.numbers.resize((size_t)(3 * numbers));
      own.indices.resize((size_t)(3 * indices));
    }
    const bool flush = kernel.kind == kPairSum || kernel.kind == kPairLogSumExp || kernel.kind == kPairSoftmax;
    for_tasks(groups * (end_entry - first_entry), n_threads, flush, [&](int64_t claimed, int thread) {
      const int64_t e = first_entry + claimed / groups, group = claimed % groups;
      for (int64_t t = plan.groups[(size_t)group]; t < plan.groups[(size_t)group + 1]; ++t)
        one(plan, plan.tasks[(size_t)t], e, scratch[(size_t)thread], partials, partial_indices);
    });
  }

  void one(const PairPlan& plan, const PairTask& task, int64_t e, Scratch& own, double* partials, int64_t* partial_indices) {
    const PairInterval* interval = plan.intervals.data() + task.first;
    // Indices of float32 lanes have 32 bits; they count from the interval in which the task begins.
    const int64_t base = interval->begin + task.skip > kFarIndex ? interval->begin + task.skip : 0;
    states.begin(own.state.data());
    int64_t left = task.n_columns, skip = task.skip;
    const bool across = plan.lanes_are_columns;
    const Packed<Number>& rows = across ? row_records : lane_rows;
    const Packed<Number>& columns = across ? lane_columns : records;
    const Tile tile = across ? kernel.columns_tile : kernel.rows_tile;
    while (left > 0) {
      const int64_t begin = interval->begin + skip, n = std::min({left, interval->end - begin, columns_per_call});
      tile(rows.at(e, task.row), rows.stride, columns.at(e, begin), columns.stride,
           params.data() + e * kernel.param_width, n, begin - base, own.state.data(),
           own.workspace.data());
      left -= n, skip += n;
      if (begin + n == interval->end) ++interval, skip = 0;
      if (left > 0) poll();
    }
    double* const a = own.numbers.data();
    int64_t* const i = own.indices.data();
    if (across) {
      states.take(own.state.data(), 0, base, a, i);
      for (int32_t lane = 1; lane < kernel.lanes; ++lane) {
        states.take(own.state.data(), lane, base, a + numbers, i + indices);
        combine(kernel, a, i, a + numbers, i + indices, a + 2 * numbers, i + 2 * indices);
      }
      finish(plan, task, e, 0, a, i, partials, partial_indices);
      return;
    }
    for (int32_t lane = 0; lane < task.n_rows; ++lane) {
      states.take(own.state.data(), lane, base, a, i);
      finish(plan, task, e, lane, a, i, partials, partial_indices);
    }
  }

  // A row's state to its result, or to where the pieces of a row wait for each other.
  void finish(const PairPlan& plan, const PairTask& task, int64_t e, int32_t lane, const double* a, const int64_t* i,
              double* partials, int64_t* partial_indices) {
    if (task.partial >= 0) {
      const int64_t place = task.partial + lane;
      std::copy(a, a + numbers, partials + place * numbers);
      std::copy(i, i + indices, partial_indices + place * indices);
      return;
    }
    put(plan, task, e, lane, a, i);
  }

  void put(const PairPlan& plan, const PairTask& task, int64_t e, int32_t lane, const double* a, const int64_t* i) {
    const int64_t at = (e * problem.n_rows + task.row + lane) * written;
    write<Number>(kernel, a, i, plan.intervals[(size_t)task.least].begin,
                  problem.values ? static_cast<Number*>(problem.values) + at : nullptr,
                  problem.indices ? problem.indices + at : nullptr);
  }

  void gather(int64_t e, Buffer<double>& partials, Buffer<int64_t>& partial_indices) {
    const PairPlan& plan = plan_of(e);
    Buffer<double> room((size_t)numbers);
    Buffer<int64_t> index_room((size_t)indices);
    for (size_t g = 0; g < plan.gathers.size(); ++g) {
      const PairTask& first = plan.tasks[(size_t)plan.gathers[g]];
      for (int32_t lane = 0; lane < first.n_rows; ++lane) {
        double* const a = partials.data() + (first.partial + lane) * numbers;
        int64_t* const i = partial_indices.data() + (first.partial + lane) * indices;
        for (int64_t piece = 1; piece < plan.n_pieces[g]; ++piece) {
          const PairTask& task = plan.tasks[(size_t)(plan.gathers[g] + piece)];
          const int64_t place = task.partial + lane;
          combine(kernel, a, i, partials.data() + place * numbers, partial_indices.data() + place * indices, room.data(),
                  index_room.data());
        }
        put(plan, first, e, lane, a, i);
      }
    }
  }

  void write_nothing(int64_t e) {
    const int64_t begin = e * problem.n_rows * written, n = problem.n_rows * written;
    if (problem.values)
      std::fill_n(static_cast<Number*>(problem.values) + begin, n, (Number)value_of_nothing(kernel));
    if (problem.indices) std::fill_n(problem.indices + begin, n, -1);
  }

  static constexpr int64_t kFarIndex = (int64_t)1 << 29;
};

}  // namespace

void reduce_pairs(const PairProblem& problem) {
  if (problem.kernel->bits == 64) Run<double, double>(problem).all();
  else if (problem.kernel->accumulator_bits == 64) Run<float, double>(problem).all();
  else Run<float, float>(problem).all();
}

}  // namespace upsweep
