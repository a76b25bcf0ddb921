// Products of a warp's 16 rows with 64 columns, by the instructions of compute capability 9.0 that four warps start
// together and that run while these do other work. tests/support/on_host.hpp has each function for the host.
// A column's 64 features lie in 128 bytes of shared memory; the eight pieces of 16 bytes of column c are in the places
// of their numbers xor c % 8.
// Called by: float16_products.cuh.

typedef float Tile[8][4];  // of columns 8 n + 2 q and 8 n + 2 q + 1: row g, then row g + 8

// Before products are started: registers that have been written or read are free.
__device__ __forceinline__ void begin_products() {
    __syncwarp();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// c = a * b, or c += a * b, of 16 features, which are number `step` of four in the columns' 64.
__device__ __forceinline__ void start_products(
    Tile& c, const unsigned (&a)[4], const char* columns, int step, bool add) {
    // Address, a distance that is not used, 1024 bytes from eight columns to the next, pieces of 128 bytes.
    const unsigned long long descriptor =
        (unsigned long long)((unsigned(__cvta_generic_to_shared(columns)) + 32 * step) >> 4 & 0x3fff) | 1ull << 16 |
        64ull << 32 | 1ull << 62;
    asm volatile(
        "{.reg .pred add;\n\t"
        "setp.ne.b32 add, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, 0;}"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
          "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
          "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]),
          "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(int(add)));
}
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all that was committed is there. `c` is read behind the second instruction, which is empty, alone.
__device__ __forceinline__ void wait_for_products(Tile& c) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int n = 0; n < 8; ++n) asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

// Before a barrier: tensor cores see what the thread's copies brought.
__device__ __forceinline__ void publish_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
