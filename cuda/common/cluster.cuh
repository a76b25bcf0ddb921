// Blocks of a cluster: their barrier, and each other's shared memory. There are clusters from compute capability 9.0 on.
#pragma once

#include <cstdint>

namespace upsweep {

// Arrives at the barrier below without publishing what this block has written: others learn that it has begun.
__device__ inline void arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
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

// A count of the bytes that other blocks send to this one, in shared memory. One thread expects them before its block
// tells the cluster that it has begun; others send after they have waited for the cluster.
struct Arrivals {
  uint64_t barrier;

  __device__ void expect(uint32_t n_bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
        "fence.mbarrier_init.release.cluster;" ::"r"(address_of(this)), "r"(n_bytes) : "memory");
#endif
  }
  // Two numbers of 16 aligned bytes to the same place of another block, by one thread.
  __device__ void send(double* to, int block, double first, double second) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .u32 to, at;\n"
        "mapa.shared::cluster.u32 to, %0, %2;\n"
        "mapa.shared::cluster.u32 at, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [to], {%3, %4}, [at];\n}" ::"r"(address_of(to)),
        "r"(address_of(this)), "r"(block), "d"(first), "d"(second) : "memory");
#endif
  }
  __device__ void wait() {
#if __CUDA_ARCH__ >= 900
    uint32_t complete;
    do {
      asm volatile(
          "{\n.reg .pred complete;\n"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], 0;\n"
          "selp.u32 %0, 1, 0, complete;\n}" : "=r"(complete) : "r"(address_of(this)) : "memory");
    } while (!complete);
#endif
  }
  static __device__ uint32_t address_of(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
};

}  // namespace upsweep
