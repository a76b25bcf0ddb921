// Blocks of a cluster: their barrier, and each other's shared memory. There are clusters from compute capability 9.0 on.
#pragma once

namespace upsweep {

// The barrier of all threads of a cluster, in two parts: what each has written before it arrives is there for all of them
// after they have waited.
__device__ inline void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ inline void synchronise_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
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

}  // namespace upsweep
