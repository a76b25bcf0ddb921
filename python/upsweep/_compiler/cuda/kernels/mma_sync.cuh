// The functions of wgmma.cuh for other devices, by instructions that a warp waits for.
// Called by: float16_products.cuh.

typedef float Tile[8][4];  // of columns 8 n + 2 q and 8 n + 2 q + 1: row g, then row g + 8

__device__ __forceinline__ void begin_products() { __syncwarp(); }

__device__ __forceinline__ void start_products(
    Tile& c, const unsigned (&a)[4], const char* columns, int step, bool add) {
    const int column = threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const unsigned* words = reinterpret_cast<const unsigned*>(columns + (8 * n + column) * 128) + threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < 4 && !add; ++k) c[n][k] = 0;
        multiply_tiles(c[n], a, words[(2 * step ^ column) * 4], words[((2 * step + 1) ^ column) * 4]);
    }
}
__device__ __forceinline__ void commit_products() {}
__device__ __forceinline__ void wait_for_products(Tile&) {}
__device__ __forceinline__ void publish_copies() {}
