// The functions of kernels/wgmma.cuh, by those of on_host.hpp. The device reads columns at addresses whose bits 4 to 6
// it changes by bits 7 to 9.
typedef float Tile[8][4];
static void begin_products() { __syncwarp(); }
static void start_products(Tile& c, const unsigned (&a)[4], const char* columns, int step, bool add) {
    for (int n = 0; n < 8; ++n) {
        unsigned b[2];
        for (int half = 0; half < 2; ++half) {
            const size_t column = 8 * n + threadIdx.x % 32 / 4, byte = 32 * step + 16 * half + threadIdx.x % 4 * 4;
            const size_t address = size_t(columns) + column * 128 + byte;
            std::memcpy(b + half, reinterpret_cast<const char*>(address ^ (address >> 7 & 7) << 4), 4);
        }
        for (int k = 0; k < 4 && !add; ++k) c[n][k] = 0;
        multiply_tiles(c[n], a, b[0], b[1]);
    }
}
static void commit_products() {}
static void wait_for_products(Tile&) {}
static void publish_copies() {}
