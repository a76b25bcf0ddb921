// Few lines of middling length: the tiles of a line are the blocks of a cluster, which hand each other what they do
// through shared memory. One launch, and no workspace that has to be filled before: what takes 8 microseconds then is
// the launch and the way to memory and back.
//
// Clusters are there from compute capability 9.0 on; plan.cpp knows.
#pragma once

#include "scan_lines.cuh"

namespace upsweep {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define UPSWEEP_CLUSTER(n)
#else
#define UPSWEEP_CLUSTER(n) __cluster_dims__(n, 1, 1)
#endif

__device__ inline void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// The same variable of another block.
__device__ inline Word* in_block(Word* mine, int block) {
  Word* theirs = mine;
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(block));
#endif
  return theirs;
}

// What has come for a block: the steps of the tiles before it, and the state after the last of these.
template <class S>
struct ClusterMail {
  Word steps[ClusterTuning::kBlocks][Mail<S>::kStepWords];
  Word state[Mail<S>::kStateWords];

  __device__ void clear() {
    Word* const words = &steps[0][0];
    for (int i = threadIdx.x; i < int(sizeof(*this) / sizeof(Word)); i += blockDim.x) words[i] = kEmpty;
  }
};

// As LineChain, for the tiles of a cluster.
template <class S>
struct ClusterChain {
  using M = Mail<S>;
  ClusterMail<S>& mail;

  __device__ void publish_step(int64_t tile, Step<S> step, bool dropped, int lane) const {
    Word w[M::kStepWords];
    M::pack(step, dropped, w);
    if (lane <= tile || lane >= ClusterTuning::kBlocks) return;
#pragma unroll
    for (int k = 0; k < M::kStepWords; ++k) post(in_block(&mail.steps[tile][k], lane), w[k]);
  }
  __device__ void publish_state(int64_t tile, S state) const {
    Word w[M::kStateWords];
    M::pack(state, w);
#pragma unroll
    for (int k = 0; k < M::kStateWords; ++k) post(in_block(&mail.state[k], static_cast<int>(tile) + 1), w[k]);
  }
  __device__ S state_after(int64_t) const {
    Word w[1][M::kStateWords];
    wait_for<1, M::kStateWords>(mail.state, 1, 0, w);
    return M::unpack(w[0]);
  }
  __device__ S state_before(int64_t tile, Step<S>, bool, int lane) const {
    bool drops;
    return fold<S>(mail.steps[0], static_cast<int>(tile), lane, &drops).b;
  }
  __device__ void has_sent_all() const { arrive_in_cluster(); }
};

// A line in each cluster.
template <class Line, bool kGated>
__global__ void __launch_bounds__(ClusterTuning::kWarps * 32, 1) UPSWEEP_CLUSTER(ClusterTuning::kBlocks)
    scan_cluster_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers given) {
  using S = typename Line::State;
  constexpr int kWarps = ClusterTuning::kWarps, kBlocks = ClusterTuning::kBlocks, kWarpTile = 32 * Line::kVec;
  __shared__ WarpSteps<S, kWarps> shared;
  __shared__ S state_before;
  __shared__ BlockPowers<S> powers;
  __shared__ ClusterMail<S> mail;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t row = blockIdx.x / kBlocks;
  const int64_t tile = blockIdx.x % kBlocks;
  Line line(p, LineIndex(p, row), tile * (blockDim.x / 32) * kWarpTile);
  line.base = warp * kStageVectors<Line, kGated>;
  line.template fetch<kGated>(warp * kWarpTile, line.base, lane);
  commit_copies();
  mail.clear();
  if (!kGated) set_powers(powers, p, given, row, Line::kVec, kWarps * kBlocks);
  // From here on every block may write into every other's mail.
  arrive_in_cluster();
  wait_for_cluster();
  scan_one_of_many<kGated, false>(p, line, row, tile, tile + 1 == kBlocks, ClusterChain<S>{mail}, shared, state_before,
                                  powers);
  wait_for_cluster();   // and none leaves while another may
}

}  // namespace upsweep
