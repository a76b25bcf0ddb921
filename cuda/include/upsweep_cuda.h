/* The C interface of libupsweep_cuda.so: the scans and counts of upsweep on CUDA devices.
 *
 * No function allocates device memory, synchronises or throws, except where its comment says so. Work goes to
 * the stream that is given. Every function returns an upsweep_status; upsweep_cuda_last_error() has the text.
 * Strides are in bytes, as numpy and __cuda_array_interface__ have them; sizes are 64 bits wide everywhere.
 */
#ifndef UPSWEEP_CUDA_H
#define UPSWEEP_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UPSWEEP_CUDA_ABI 5
#define UPSWEEP_MAX_DIMS 64

typedef enum {
  UPSWEEP_OK = 0,
  UPSWEEP_INVALID = 1,     /* an argument that a caller should not have let through */
  UPSWEEP_UNSUPPORTED = 2, /* a device for which this library holds no code */
  UPSWEEP_CUDA_ERROR = 3,  /* a CUDA call failed; the text has its name and its own words */
  UPSWEEP_WORKSPACE = 4,   /* nothing was done: the scan needs the workspace whose size was written */
  UPSWEEP_NO_KERNEL = 5     /* nothing was done: no kernel is made for what was asked; there are other ways to it */
} upsweep_status;

typedef enum {
  UPSWEEP_BOOL, UPSWEEP_INT8, UPSWEEP_UINT8, UPSWEEP_INT16, UPSWEEP_UINT16, UPSWEEP_INT32, UPSWEEP_UINT32,
  UPSWEEP_INT64, UPSWEEP_UINT64, UPSWEEP_FLOAT16, UPSWEEP_BFLOAT16, UPSWEEP_FLOAT32, UPSWEEP_FLOAT64,
  UPSWEEP_COMPLEX64, UPSWEEP_COMPLEX128
} upsweep_dtype;

/* What a state is held in: float64, complex128, or 64 bits of an integer. */
typedef enum { UPSWEEP_REAL, UPSWEEP_COMPLEX, UPSWEEP_INTEGER } upsweep_accumulator;

/* data == NULL: not given. batch_strides belong to the axes other than the scan's, outermost first. */
typedef struct {
  void* data;
  int32_t dtype;
  int32_t reserved;
  int64_t time_stride;
  int64_t batch_strides[UPSWEEP_MAX_DIMS];
} upsweep_array;

/* y[t] = a[t] * y[t-1] + x[t]; a is `gates`, else `gamma` (no time axis), else the number gamma_re + i gamma_im.
 * x, gates, reset and out begin at t = 0 also in reverse. gamma, initial and final_state have no time axis.
 * Without `out` only final_state is written. */
typedef struct {
  int32_t device;
  int32_t accumulator;
  int32_t reverse;
  int32_t exclusive;           /* y[t] is the state before step t */
  void* stream;
  void* workspace;             /* of the size that the plan asks for; 256-byte aligned; may be dirty */
  int64_t workspace_bytes;
  double gamma_re, gamma_im;
  int64_t length;
  int64_t window;              /* 0, or how many steps each y sums; then only x, out, reset and gamma are read */
  int32_t n_batch;
  int32_t reserved;
  int64_t batch_shape[UPSWEEP_MAX_DIMS];
  upsweep_array x, gates, reset, out, gamma, initial, final_state;
} upsweep_scan;

/* What a block of steps does to the state before it: scan.final_state = the state after it from none, or from scan.initial;
 * multiplier = the product of its factors, the first one included, 0 where a reset drops the state before the block;
 * dropped = whether one does. All three lack the axis of time, and are optional. multiplier is float64, or complex128
 * where the factors are complex, or 64 bits of an integer; dropped is bool. scan.out, exclusive and window are not used;
 * integers are only summed. */
typedef struct {
  upsweep_scan scan;
  upsweep_array multiplier, dropped;
} upsweep_reduction;

/* The plainest scan, for calls that should cost little: lines one after the other in memory, of one real dtype. */
typedef struct {
  int32_t device;
  int32_t dtype;
  int32_t reverse;
  int32_t reserved;
  void* stream;
  void* x;
  void* gates;                 /* NULL: gamma */
  void* out;
  double gamma;
  int64_t lines;
  int64_t length;
  void* workspace;
  int64_t workspace_bytes;     /* with UPSWEEP_WORKSPACE: what is needed */
} upsweep_lines;

/* The gradients of gates and x in upsweep_lines, without an initial state, from the gradient g of its out, y:
 * gx[t] = g[t] + gates[t+1] * gx[t+1] and g_gates[t] = gx[t] * y[t-1], which is 0 at the first step; in reverse, t-1 and
 * t+1 change places. Lines one after the other in memory in every array; gx and g_gates overlap nothing. */
typedef struct {
  int32_t device;
  int32_t dtype;
  int32_t reverse;             /* of the scan that made y */
  int32_t reserved;
  void* stream;
  void* gates;
  void* y;
  void* g;
  void* gx;
  void* g_gates;
  int64_t lines;
  int64_t length;
} upsweep_lines_backward;

/* How a scan will run: what upsweep_cuda_plan_scan answers, without touching a device. */
typedef struct {
  int32_t regime;              /* 0 nothing to do, 1 short lines, 2 lines, 3 split lines, 4 columns, 5 split columns,
                                  6 window, 7 packed lines, 8 cluster lines, 9 persistent lines, 10 held columns,
                                  11 wide columns, 12 resident lines, 13 block lines */
  int32_t typed;               /* 1: a kernel of x's own dtype in contiguous memory; 0: any dtype, any strides */
  int64_t lines;
  int64_t tile;                /* steps of one tile */
  int64_t n_launches;
  int64_t workspace_bytes;
} upsweep_plan;

/* out[bin] = how many keys are `bin`, or with weights the sum of theirs; for each line of a batch. time_stride is
 * keys' along the keys and out's along the bins. A key outside [0, n_bins) is left out.
 * out is int64 for counts and for sums of integers, which wrap; float32 or float64 for sums, which are made in
 * float64. */
typedef struct {
  int32_t device;
  int32_t accumulate;          /* add to out instead of overwriting it */
  int32_t deterministic;       /* sums of floats have the same bits on each run, at a cost */
  int32_t n_batch;
  void* stream;
  void* workspace;             /* as for upsweep_scan */
  int64_t workspace_bytes;
  int64_t length;              /* keys of a line */
  int64_t n_bins;
  int64_t n_columns;           /* sums for each bin; not read without weights */
  int64_t weights_column_stride;
  int64_t out_column_stride;
  int64_t batch_shape[UPSWEEP_MAX_DIMS];
  upsweep_array keys, weights, out;
  void* dropped;               /* int64 on the device: how many keys were left out; NULL: not asked for */
  void* first_outside;         /* int64: the position of the first of them in C order, or -1; goes with dropped */
} upsweep_count;

typedef enum { UPSWEEP_THRESHOLDS = 0, UPSWEEP_HISTC = 1, UPSWEEP_HISTOGRAM = 2 } upsweep_rule;

/* A histogram: count.keys are elements of any real dtype, all axes of which are counted into out, of one axis.
 * An element x is in slot s = how many thresholds there are with x >= threshold; slot s counts in bin s - 1 if there
 * is one. Thresholds do not decrease and are of the type that elements are compared in: float32 for those of 8 and 16
 * bits and float32, int64 and uint64 for their own, float64 for the others. The guess is int((x - origin) * scale +
 * 0.5); it costs speed, not correctness, where it is wrong. count.first_outside is not read. Counts may be of float32
 * and float64, too, unless they are added to. */
typedef struct {
  upsweep_count count;
  void* thresholds;            /* on the device */
  int64_t n_thresholds;
  double origin, scale;
  /* Or bins of one width, whose thresholds the call computes on the device; the four fields above are not read then.
   * UPSWEEP_HISTC: an element of float32 or float64 is in bin int((x - first) * n_bins / (last - first)), each
   * operation rounded to its dtype; the last bin has `last`. UPSWEEP_HISTOGRAM: edge k is k * step + first, each operation
   * rounded to step_dtype, then to edge_dtype (both float32 or float64), and edge n_bins is `last`; elements are not of
   * int64 or uint64. */
  int32_t rule;                /* upsweep_rule */
  int32_t edge_dtype, step_dtype, reserved;
  double first, last, step;
  void* edges;                 /* on the device: n_bins + 1, written by UPSWEEP_HISTOGRAM */
} upsweep_histogram;

/* How a count will run; in brackets, sums of weights: 1 a table for each warp, 2 tables that
 * warps share, 3 memory, 4 parts. */
typedef struct {
  int32_t regime;              /* 0 nothing to count, 1 tables in shared memory, 2 in memory, 3 keys put into parts,
                                  then tables for each, 4 a warp for each line */
  int32_t replicas;            /* of each counter of a table [of each sum of a block] */
  int32_t shares;              /* that the bins of tables are cut into; the keys are read once for each */
  int32_t vectors;             /* keys are read 16 bytes at a time */
  int64_t splits;              /* blocks that share a line */
  int64_t n_launches;
  int64_t workspace_bytes;
} upsweep_count_plan;

int32_t upsweep_cuda_abi(void);
/* sizeof(upsweep_array), sizeof(upsweep_scan), sizeof(upsweep_reduction), sizeof(upsweep_lines),
 * sizeof(upsweep_lines_backward), sizeof(upsweep_plan), sizeof(upsweep_count), sizeof(upsweep_histogram),
 * sizeof(upsweep_count_plan) */
void upsweep_cuda_sizes(int64_t sizes[9]);
/* Compute capabilities that code is held for, times ten and in any order; returns how many there are. */
int32_t upsweep_cuda_architectures(int32_t* capabilities, int32_t n);
const char* upsweep_cuda_last_error(void);

int32_t upsweep_cuda_device_count(int32_t* count);
/* name: at least 256 bytes; capability: major * 10 + minor. UPSWEEP_UNSUPPORTED if nothing here runs on it. */
int32_t upsweep_cuda_device_check(int32_t device, char* name, int32_t* capability);

/* The plan depends on shapes, strides, dtypes and n_processors (of the device; 0: looked up). */
int32_t upsweep_cuda_plan_scan(const upsweep_scan* scan, int32_t n_processors, upsweep_plan* plan);
int32_t upsweep_cuda_scan(const upsweep_scan* scan);
int32_t upsweep_cuda_scan_lines(upsweep_lines* lines);
/* Regimes 0, 1, 2 and 4; tile: steps of a chunk of a line. It depends on no device. */
int32_t upsweep_cuda_plan_reduce(const upsweep_reduction* reduction, upsweep_plan* plan);
int32_t upsweep_cuda_reduce(const upsweep_reduction* reduction);
/* UPSWEEP_NO_KERNEL where lines are few and long, or begin otherwise in one array than in another, as counted from
 * multiples of 16 bytes. The first says which it will be, without touching a device unless n_processors is 0. */
int32_t upsweep_cuda_plan_lines_backward(const upsweep_lines_backward* lines, int32_t n_processors);
int32_t upsweep_cuda_lines_backward(const upsweep_lines_backward* lines);

/* n_processors as above; with it, sizes of shared memory are those of compute capability 9.0. */
int32_t upsweep_cuda_plan_count(const upsweep_count* count, int32_t n_processors, upsweep_count_plan* plan);
int32_t upsweep_cuda_count(const upsweep_count* count);
/* Of count's keys, device, stream, length and batch: range[0] is the largest as 64 bits of its kind (without a key, -1
 * or of unsigned ones 0), range[1] the position in C order of the first negative one, or -1. range: int64[2] on the
 * device. */
int32_t upsweep_cuda_key_range(const upsweep_count* count, void* range);

/* regime: 1 if bins are found and counted in one pass, 0 if they are found first. Weights of a histogram have one
 * stride. */
int32_t upsweep_cuda_plan_histogram(const upsweep_histogram* histogram, int32_t n_processors,
                                    upsweep_count_plan* plan);
int32_t upsweep_cuda_histogram(const upsweep_histogram* histogram);
/* Of count's keys, which are elements of any real dtype: range[0] and range[1] are the least and the largest, as 64
 * bits that are ordered as signed integers (floats as float64 with all but the sign flipped of negative ones, uint64 less
 * 2^63); range[2] is the position of the first that is not finite, or -1. range: int64[3] on the device. */
int32_t upsweep_cuda_value_range(const upsweep_count* count, void* range);

/* For arrays that come from the host. The first two allocate and free on the stream; copies return when the
 * data is there, so they synchronise the stream. */
int32_t upsweep_cuda_allocate(int32_t device, void* stream, int64_t bytes, void** memory);
int32_t upsweep_cuda_free(int32_t device, void* stream, void* memory);
int32_t upsweep_cuda_copy_to_device(int32_t device, void* stream, void* to, const void* from, int64_t bytes);
int32_t upsweep_cuda_copy_to_host(int32_t device, void* stream, void* to, const void* from, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
