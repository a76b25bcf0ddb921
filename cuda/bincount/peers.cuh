// Lanes of a warp that have the same number: who they are, and the sum of what they have. Cost does not depend on
// how many numbers there are, and for the sum only on the largest set.
#pragma once

#include <cstdint>

namespace upsweep {

// The lanes whose `number` is the same in its lowest `bits`, for several numbers together: one vote for each bit.
template <int n>
__device__ inline void peers_of(const uint32_t (&number)[n], int bits, uint32_t (&peers)[n]) {
#pragma unroll
  for (int k = 0; k < n; ++k) peers[k] = ~0u;
  for (int bit = 0; bit < bits; ++bit) {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const bool set = number[k] >> bit & 1;
      const uint32_t votes = __ballot_sync(~0u, set);
      peers[k] &= set ? votes : ~votes;
    }
  }
}

// Adds up the values of each set of peers, always in the same order; the sum is in the lowest lane of the set. In
// each step a lane takes the value of the next peer above it, then every second one is done.
template <class Sum>
__device__ inline Sum merge_peers(uint32_t peers, Sum value) {
  const int lane = threadIdx.x % 32;
  int rank = __popc(peers & ((1u << lane) - 1));
  uint32_t above = peers & ~1u << lane;
  while (__any_sync(~0u, above != 0)) {
    const int next = __ffs(above) - 1;
    const Sum other = __shfl_sync(~0u, value, next < 0 ? lane : next);
    if (next >= 0) value += other;
    above &= __ballot_sync(~0u, (rank & 1) == 0);
    rank >>= 1;
  }
  return value;
}

}  // namespace upsweep
