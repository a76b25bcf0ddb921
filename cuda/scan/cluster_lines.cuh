// Few lines of middling length: the tiles of a line are the blocks of a cluster, which hand each other what they do
// through shared memory. One launch, and no workspace that has to be filled before: what takes 8 microseconds then is
// the launch and the way to memory and back.
//
// Clusters are there from compute capability 9.0 on; plan/scan.cpp knows.
#pragma once

#include "scan/lines.cuh"

namespace upsweep {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define UPSWEEP_CLUSTER(n)
#else
#define UPSWEEP_CLUSTER(n) __cluster_dims__(n, 1, 1)
#endif

// By every thread of a cluster: what each has written before is there for all of them after it.
__device__ inline void synchronise_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// The same variable of another block.
template <class T>
__device__ inline T* in_block(T* local, int block) {
  T* remote = local;
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(local), "r"(block));
#endif
  return remote;
}

// What has come for a block: what each tile of its line does, to any state where one may be wrong that is not finite.
template <class S>
struct ClusterSteps {
  Step<S> step[ClusterTuning::kBlocks];
  bool dropped[ClusterTuning::kBlocks];
  ExtendedStep extended[ClusterTuning::kBlocks];

  // To all blocks, by a warp.
  __device__ void send(int tile, Step<S> own, bool drops, int lane) {
    if (lane >= ClusterTuning::kBlocks) return;
    ClusterSteps* const to = in_block(this, lane);
    to->step[tile] = own;
    to->dropped[tile] = drops;
  }
  // The state before a tile, by a warp. not_finite: one before a tile is not, and the fold may have made a NaN of an
  // infinity; every block finds the same.
  __device__ S state_before(int tile, int lane, bool* not_finite) const {
    const bool is_tile = lane < ClusterTuning::kBlocks;
    const Step<S> own = is_tile ? step[lane] : Step<S>{one(S()), nothing(S())};
    const uint32_t droppers = __ballot_sync(0xffffffffu, is_tile && dropped[lane]);
    const S after = scan_of_steps(own, droppers, lane).b;
    *not_finite = __any_sync(0xffffffffu, lane + 1 < ClusterTuning::kBlocks && !is_finite(after));
    const S before = shuffle(after, tile ? tile - 1 : 0);
    return tile ? before : nothing(S());
  }
};

// A line in each cluster.
template <class Line, bool kGated>
__global__ void __launch_bounds__(ClusterTuning::kWarps * 32, 1) UPSWEEP_CLUSTER(ClusterTuning::kBlocks)
    scan_cluster_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers gamma_powers) {
  using S = typename Line::State;
  constexpr int kWarps = ClusterTuning::kWarps, kBlocks = ClusterTuning::kBlocks, kWarpTile = 32 * Line::kVec;
  __shared__ WarpSteps<S, kWarps> shared;
  __shared__ BlockPowers<S> powers;
  __shared__ ClusterSteps<S> tile_states;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  const int warp_position = warp * kWarpTile, position = warp_position + lane * Line::kVec;
  const uint32_t row = blockIdx.x / kBlocks;
  const int tile_index = blockIdx.x % kBlocks;
  Line line(p, LineIndex(p, row), int64_t(tile_index) * n_warps * kWarpTile);
  line.base = warp * kStageVectors<Line, kGated>;
  line.template fetch<kGated>(warp_position, line.base, lane);
  commit_copies();
  if (!kGated) set_powers(powers, p, gamma_powers, row, Line::kVec, kWarps * kBlocks);
  synchronise_cluster();           // from here on every block may write into every other's shared memory
  const bool plain = is_plain(line, p, warp_position, kWarpTile);
  Tile<Line, kGated, false> tile;
  take_one_of_many(tile, p, line, row, tile_index == 0, position, shared, powers, plain);
  if (warp == 0) {
    bool drops;
    const Step<S> step = shared.all(n_warps, &drops);
    tile_states.send(tile_index, step, drops, lane);
  }
  synchronise_cluster();
  bool not_finite;
  const S state = tile_states.state_before(tile_index, lane, &not_finite);
  if (not_finite && (kGated || !powers.keep)) {
    finish_tile_again(tile, shared, line, p, row, position, powers.gamma, [&](const ExtendedStep& own) {
      using Local = typename Line::Local;
      if (warp == 0 && lane < kBlocks) in_block(&tile_states, lane)->extended[tile_index] = own;
      synchronise_cluster();
      ExtendedStep all;
      return scan_of_warps<Local>(tile_states.extended, kBlocks, tile_index, lane, &all).template of<Local>(nothing(S()));
    });
  } else {
    finish_tile<kGated>(tile, shared, line, p, row, position, powers, state, plain);
  }
  if (p.writes) line.flush(warp_position, plain, lane);
}

}  // namespace upsweep
