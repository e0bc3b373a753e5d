/* A client of NCCL in C that makes collective calls, sends and receives, for test_nccl_calls.py.
 *
 *     nccl_calls CALLS VALUES OUT RANKS WAY
 *
 * WAY: who makes the ranks' calls: "group", one thread, with all ranks' in a group; "threads" or
 * "processes", one each; "wrong": as "group", after calls that are refused or passed on, and prints
 * what it gets for these; "lacking": the same with calls of all ranks for which there are no kernels;
 * "aborted": rank 1 aborts a call of rank 0; "unequal": it takes more than rank 0 sends. CALLS has a
 * line for each call: the function's number (as in `start`), the type, the operation (5, 6: PreMulSum
 * by a scalar of the host, of the device), the count, the root, the stream (0 the default, or an own
 * one where ranks share a device, and so its default stream; 1 an own one, 2 an own one that is
 * captured) and whether it is the form with a config. Of SHIFT the root is how far on the rank is that each one
 * sends to; in an EXCHANGE all send to all, unequal parts, in two messages each. VALUES has four
 * tables of 16 values of 8 bytes for each type, of which an element takes the first: what is summed,
 * what is multiplied, the ranks' scalars, and what is averaged. Each rank puts its outputs, call
 * after call, into OUT/rank. SLEY_FAKE in the environment: settings of the stand-in for NVIDIA's
 * driver, "devices=4 memory_bytes=1000".
 *
 * Each rank chooses by itself whether a call is in place, and whether what NCCL doesn't read is null.
 * All of the memory but the output must stay as it was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef WITH_HEADER
#include <nccl.h>
#else
typedef struct { char internal[128]; } ncclUniqueId;
typedef void *ncclComm_t, *cudaStream_t;
typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t, ncclScalarResidence_t;
#define ALL const void *send, void *receive, size_t count, ncclDataType_t type
#define END ncclComm_t comm, cudaStream_t stream
ncclResult_t ncclGetUniqueId(ncclUniqueId *);
ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t ncclCommSplit(ncclComm_t, int color, int key, ncclComm_t *, void *config);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
const char *ncclGetLastError(ncclComm_t);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t,
                                      ncclComm_t);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t);
ncclResult_t ncclAllReduce(ALL, ncclRedOp_t, END);
ncclResult_t ncclBroadcast(ALL, int root, END);
ncclResult_t ncclBcast(void *, size_t, ncclDataType_t, int root, END);
ncclResult_t ncclReduce(ALL, ncclRedOp_t, int root, END);
ncclResult_t ncclAllGather(ALL, END);
ncclResult_t ncclReduceScatter(ALL, ncclRedOp_t, END);
ncclResult_t ncclAlltoAll(ALL, END);
ncclResult_t ncclGather(ALL, int root, END);
ncclResult_t ncclScatter(ALL, int root, END);
ncclResult_t ncclSend(const void *, size_t, ncclDataType_t, int peer, END);
ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int peer, END);
ncclResult_t ncclAllReduceConfig(ALL, ncclRedOp_t, END, const void *);
ncclResult_t ncclBroadcastConfig(ALL, int root, END, const void *);
ncclResult_t ncclReduceConfig(ALL, ncclRedOp_t, int root, END, const void *);
ncclResult_t ncclAllGatherConfig(ALL, END, const void *);
ncclResult_t ncclReduceScatterConfig(ALL, ncclRedOp_t, END, const void *);
ncclResult_t ncclAlltoAllConfig(ALL, END, const void *);
ncclResult_t ncclGatherConfig(ALL, int root, END, const void *);
ncclResult_t ncclScatterConfig(ALL, int root, END, const void *);
#define NCCL_VERSION_CODE 23100
#endif

enum { ALL_REDUCE, BROADCAST, BCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER,
       SHIFT, EXCHANGE };
enum { MOST_RANKS = 16, TYPES = 12, GUARD = 64, PRE_MUL_SUM = 5 };
enum { HALF_BYTES = 1 << 21 }; /* more than a rank takes before its receive begins */
static const int item_of[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

struct call { int kind, type, op; size_t count; int root, stream, config; };
struct rank {
  int number;
  ncclComm_t comm;
  void *context, *stream, *graph;
  void *other; /* stream */
  uint64_t scalar;                /* where the device has it */
  uint64_t memory[2];             /* what is sent is in the first, unless in place */
  unsigned char *before[2], *after[2];
  size_t used[2], at, bytes;      /* of each memory; of the output */
  int output;                     /* the memory that has it; -1: none */
  const void *send;
  void *receive;
  FILE *out;
};

static struct call *calls;
static int number_of_calls, ranks;
static int opened_ends[2]; /* of a pipe: a byte of each rank that has opened */
static unsigned char values[4][TYPES][16][8];
static size_t room = 2 * HALF_BYTES;
static const char *folder;

/* The driver's functions, whose results are 0 unless they fail. */
#define DRIVER(X)                                                                                \
  X(cuInit, unsigned) X(cuDeviceGetCount, int *) X(cuDeviceGet, int *, int)                       \
  X(cuDevicePrimaryCtxRetain, void **, int) X(cuCtxPushCurrent, void *) X(cuCtxPopCurrent, void **) \
  X(cuMemAlloc, uint64_t *, size_t) X(cuMemHostAlloc, uint64_t *, size_t, unsigned)               \
  X(cuStreamCreate, void **, unsigned)                          \
  X(cuMemcpyHtoDAsync, uint64_t, const void *, size_t, void *)                                    \
  X(cuMemcpyDtoHAsync, void *, uint64_t, size_t, void *) X(cuStreamSynchronize, void *)           \
  X(cuStreamBeginCapture, void *, int) X(cuStreamEndCapture, void *, void **)                     \
  X(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)                             \
  X(cuGraphLaunch, void *, void *)
#define DECLARE(name, ...) static int (*name)(__VA_ARGS__);
DRIVER(DECLARE)

static void check(int is_right, const char *what, int number) {
  if (is_right) return;
  fprintf(stderr, "%s: %d: %s\n", what, number, ncclGetLastError(NULL));
  _exit(1);
}
#define CHECK(call) do { int result = (call); check(result == 0, #call, result); } while (0)

static void start_driver(void) {
  char *settings = getenv("SLEY_FAKE"), *one;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*find)(const char *, void **, int, uint64_t, int *);
  long long (*set)(const char *, long long);
  check(driver != NULL, "the driver", 0);
  find = dlsym(driver, "cuGetProcAddress_v2");
  set = dlsym(driver, "fake_set");
#define FIND(name, ...) CHECK(find(#name, (void **)&name, 12010, 0, NULL));
  DRIVER(FIND)
  settings = set != NULL && settings != NULL ? strdup(settings) : NULL;
  for (one = strtok(settings, " "); settings != NULL && one != NULL; one = strtok(NULL, " ")) {
    char *value = strchr(one, '=');
    *value = 0;
    set(one, atoll(value + 1));
  }
  CHECK(cuInit(0));
}

static void open_rank(struct rank *r, int number) {
  int device, devices, i;
  memset(r, 0, sizeof *r);
  r->number = number;
  CHECK(cuDeviceGetCount(&devices));
  CHECK(cuDeviceGet(&device, number % devices));
  CHECK(cuDevicePrimaryCtxRetain(&r->context, device));
  CHECK(cuCtxPushCurrent(r->context));
  CHECK(cuStreamCreate(&r->stream, 1));
  if (devices < ranks) CHECK(cuStreamCreate(&r->other, 1));
  CHECK(cuMemAlloc(&r->scalar, 8));
  for (i = 0; i < 2; ++i) {
    /* Kernels read memory of the host, too. */
    CHECK(i == number % 2 ? cuMemAlloc(&r->memory[i], room) : cuMemHostAlloc(&r->memory[i], room, 3));
    r->before[i] = malloc(room);
    r->after[i] = malloc(room);
  }
}

static FILE *output_of(int number) {
  char path[4096];
  FILE *out;
  snprintf(path, sizeof path, "%s/%d", folder, number);
  out = fopen(path, "wb");
  check(out != NULL, path, 0);
  return out;
}

/* A number of a call and a rank, of which all bits vary. */
static uint32_t mixed(uint32_t call, uint32_t rank) {
  uint32_t x = call * 2654435761u + rank * 40503u + 1;
  x = (x ^ x >> 15) * 2246822519u;
  return x ^ x >> 13;
}

static void *stream_of(struct rank *r, const struct call *c) {
  return c->stream ? r->stream : r->other;
}

/* How many elements one rank sends another in an EXCHANGE. */
static size_t part_of(const struct call *c, int from, int to) {
  return c->count * (1 + (from + 2 * to + c->root) % 3) / 3;
}

/* Lays out a rank's memory for a call, and fills it. */
static void stage(struct rank *r, int number) {
  const struct call *c = &calls[number];
  const uint32_t mix = mixed(number, r->number);
  const int item = item_of[c->type], is_root = r->number == c->root;
  const size_t block = c->count * item, all = block * ranks, own = block * r->number;
  const int divides = c->kind == REDUCE_SCATTER || c->kind == ALL_TO_ALL || c->kind == SCATTER ||
                      c->kind == EXCHANGE;
  const int unites = c->kind == ALL_GATHER || c->kind == ALL_TO_ALL || c->kind == GATHER;
  const int sends = is_root || (c->kind != BROADCAST && c->kind != BCAST && c->kind != SCATTER);
  const int receives = is_root || (c->kind != REDUCE && c->kind != GATHER);
  const int in_place = c->kind == BCAST || (mix & 1 && sends && receives && c->kind < SHIFT &&
                                            c->kind != ALL_TO_ALL);
  const int table = c->op == 1 ? 1 : c->op == 4 ? 3 : 0;
  size_t sent = divides ? all : block, from = 0, i;
  int in = in_place && !divides ? 1 : 0, k; /* the memory of what is sent */
  for (i = 0; i < 2; ++i) {
    r->used[i] = all + GUARD;
    memset(r->before[i], 0xa5, r->used[i]);
  }
  if (in_place && unites) from = own;
  for (i = 0; sends && i < sent / item; ++i) {
    const uint32_t at = (uint32_t)i * 2654435761u + mix;
    memcpy(r->before[in] + from + i * item, values[table][c->type][at >> 28], item);
  }
  for (k = 0; k < 2; ++k) {
    CHECK(cuMemcpyHtoDAsync(r->memory[k], r->before[k], r->used[k], stream_of(r, c)));
  }
  r->output = !receives ? -1 : in_place && divides ? 0 : 1;
  r->at = in_place && divides ? own : 0;
  r->bytes = unites ? all : block;
  if (c->kind == EXCHANGE) {
    for (r->bytes = 0, k = 0; k < ranks; ++k) r->bytes += part_of(c, k, r->number) * item;
  }
  r->send = (void *)(r->memory[in] + from);
  r->receive = (void *)(r->memory[r->output == 0 ? 0 : 1] + r->at);
  if (!sends && mix & 2 && c->kind != BCAST) r->send = NULL;
  if (!receives && mix & 2) r->receive = NULL;
  if (c->count == 0 && mix & 2) r->send = r->receive = NULL;
  if (c->op == PRE_MUL_SUM + 1) {
    CHECK(cuMemcpyHtoDAsync(r->scalar, values[2][c->type][r->number], 8, stream_of(r, c)));
  }
  CHECK(cuStreamSynchronize(stream_of(r, c)));
  if (c->stream == 2) CHECK(cuStreamBeginCapture(r->stream, 1));
}

/* Each rank in another order, but for the messages of a pair. */
static void exchange(struct rank *r, const struct call *c) {
  const int item = item_of[c->type];
  const int step = r->number % 2 ? ranks - 1 : 1;
  int turn, half, k;
  CHECK(ncclGroupStart());
  for (turn = 0; turn < ranks; ++turn) {
    const int peer = (r->number + turn * step) % ranks;
    const size_t sent = part_of(c, r->number, peer), received = part_of(c, peer, r->number);
    const char *from = (const char *)r->send + peer * c->count * item;
    char *to = r->receive;
    for (k = 0; k < peer; ++k) to += part_of(c, k, r->number) * item;
    for (half = 0; half < 2; ++half) {
      const size_t s = half ? sent - sent / 3 : sent / 3;
      const size_t n = half ? received - received / 3 : received / 3;
      CHECK(ncclSend(from, s, (ncclDataType_t)c->type, peer, r->comm, stream_of(r, c)));
      CHECK(ncclRecv(to, n, (ncclDataType_t)c->type, peer, r->comm, stream_of(r, c)));
      from += s * item;
      to += n * item;
    }
  }
  CHECK(ncclGroupEnd());
}

static void start(struct rank *r, const struct call *c) {
#ifdef NCCL_COLLCONFIG_INITIALIZER
  ncclCollConfig_t hints = NCCL_COLLCONFIG_INITIALIZER, *config = &hints;
#elif NCCL_VERSION_CODE >= 23100
  const void *config = NULL;
#endif
  ncclDataType_t type = c->type;
  ncclRedOp_t op = c->op;
  void *stream = stream_of(r, c);
  if (c->op >= PRE_MUL_SUM) {
    const int is_host = c->op == PRE_MUL_SUM;
    unsigned char scalar[8];
    memcpy(scalar, values[2][c->type][r->number], 8);
    CHECK(ncclRedOpCreatePreMulSum(&op, is_host ? (void *)scalar : (void *)r->scalar, type,
                                   (ncclScalarResidence_t)is_host, r->comm));
    memset(scalar, 0xff, 8);
  }
#define ARGUMENTS r->send, r->receive, c->count, type
#if NCCL_VERSION_CODE >= 23100
#define RUN(function, ...)                                                         \
  if (c->config) CHECK(function##Config(ARGUMENTS, __VA_ARGS__, r->comm, stream, config)); \
  else CHECK(function(ARGUMENTS, __VA_ARGS__, r->comm, stream))
#define RUN_PLAIN(function)                                                        \
  if (c->config) CHECK(function##Config(ARGUMENTS, r->comm, stream, config));         \
  else CHECK(function(ARGUMENTS, r->comm, stream))
#else
#define RUN(function, ...) CHECK(function(ARGUMENTS, __VA_ARGS__, r->comm, stream))
#define RUN_PLAIN(function) CHECK(function(ARGUMENTS, r->comm, stream))
#endif
  switch (c->kind) {
    case ALL_REDUCE: RUN(ncclAllReduce, op); break;
    case BROADCAST: RUN(ncclBroadcast, c->root); break;
    case BCAST: CHECK(ncclBcast(r->receive, c->count, type, c->root, r->comm, stream)); break;
    case REDUCE: RUN(ncclReduce, op, c->root); break;
    case ALL_GATHER: RUN_PLAIN(ncclAllGather); break;
    case REDUCE_SCATTER: RUN(ncclReduceScatter, op); break;
    case ALL_TO_ALL: RUN_PLAIN(ncclAlltoAll); break;
    case GATHER: RUN(ncclGather, c->root); break;
    case SCATTER: RUN(ncclScatter, c->root); break;
    case SHIFT:
      CHECK(ncclRecv(r->receive, c->count, type, (r->number + ranks - c->root) % ranks, r->comm,
                     stream));
      CHECK(ncclSend(r->send, c->count, type, (r->number + c->root) % ranks, r->comm, stream));
      break;
    case EXCHANGE: exchange(r, c); break;
  }
  if (c->op >= PRE_MUL_SUM) CHECK(ncclRedOpDestroy(op, r->comm));
}

static void launch_graph(struct rank *r, const struct call *c) {
  void *graph = NULL;
  if (c->stream != 2) return;
  CHECK(cuStreamEndCapture(r->stream, &graph));
  CHECK(cuGraphInstantiateWithFlags(&r->graph, graph, 0));
  CHECK(cuGraphLaunch(r->graph, r->stream));
}

static void finish(struct rank *r, int number) {
  const struct call *c = &calls[number];
  int k;
  for (k = 0; k < 2; ++k) {
    CHECK(cuMemcpyDtoHAsync(r->after[k], r->memory[k], r->used[k], stream_of(r, c)));
  }
  CHECK(cuStreamSynchronize(stream_of(r, c)));
  if (r->output >= 0) {
    fwrite(r->after[r->output] + r->at, 1, r->bytes, r->out);
    memcpy(r->before[r->output] + r->at, r->after[r->output] + r->at, r->bytes);
  }
  for (k = 0; k < 2; ++k) {
    check(memcmp(r->before[k], r->after[k], r->used[k]) == 0, "memory beside the output changed",
          number);
  }
}

static void close_rank(struct rank *r) {
  CHECK(ncclCommDestroy(r->comm));
  fclose(r->out);
}

#define SAY(call) \
  do { int result = (call); printf("%d %s\n", result, ncclGetLastError(NULL)); } while (0)
#define SUM(from, to, elements, kind, op) \
  SAY(ncclAllReduce((void *)(from), (void *)(to), elements, kind, op, r->comm, r->stream))

/* Rank 0's messages, as make_wrong_calls. */
static void send_wrongly(struct rank *r, struct rank *other) {
  enum { FLOAT = 7 };
  void *a = (void *)r->memory[0], *b = (void *)r->memory[1];
  SAY(ncclSend(a, 4, TYPES, 1, r->comm, r->stream));
  SAY(ncclSend(a, 4, FLOAT, ranks, r->comm, r->stream));
  SAY(ncclRecv(b, 4, FLOAT, -1, r->comm, r->stream));
  SAY(ncclSend(a, (size_t)1 << 62, FLOAT, 1, r->comm, r->stream));
  SAY(ncclSend(NULL, 4, FLOAT, 1, r->comm, r->stream));
  SAY(ncclRecv(NULL, 4, FLOAT, 1, r->comm, r->stream));
  SAY(ncclRecv((void *)other->memory[1], 4, FLOAT, 1, r->comm, r->stream));
  SAY(ncclRecv(b, 4, FLOAT, 1, r->comm, other->stream));
  SAY(ncclSend(a, 4, FLOAT, 0, r->comm, r->stream));
  CHECK(ncclGroupStart());
  CHECK(ncclAllReduce(a, b, 4, FLOAT, 0, r->comm, r->stream));
  CHECK(ncclSend(a, 4, FLOAT, 1, r->comm, r->stream));
  SAY(ncclRecv(b, 4, FLOAT, 2, r->comm, r->stream));
  SAY(ncclGroupEnd());
  CHECK(ncclGroupStart());
  CHECK(ncclSend(a, 4, FLOAT, 0, r->comm, r->stream));
  CHECK(ncclRecv(b, 2, FLOAT, 0, r->comm, r->stream));
  SAY(ncclGroupEnd());
  CHECK(cuStreamBeginCapture(r->stream, 1));
  CHECK(ncclGroupStart());
  CHECK(ncclSend(a, 4, FLOAT, 1, r->comm, r->stream));
  CHECK(ncclRecv(b, 4, FLOAT, 1, r->comm, r->other));
  SAY(ncclGroupEnd());
  CHECK(cuStreamEndCapture(r->stream, &r->graph));
}

/* Calls of rank 0 alone: none of them may begin. */
static void make_wrong_calls(struct rank *r, struct rank *other) {
  enum { INT = 2, FLOAT = 7, DOUBLE = 8 };
  const uint64_t a = r->memory[0], b = r->memory[1];
  ncclRedOp_t op, others;
  const uint32_t scalar = 0;
  void *real = dlopen(getenv("SLEY_NCCL_LIBRARY"), RTLD_NOW);
  SUM(a, b, 4, TYPES, 0);
  SUM(a, b, 4, FLOAT, -1);
  SUM(a, b, 4, FLOAT, PRE_MUL_SUM);
  SUM(a, b, (size_t)1 << 62, FLOAT, 0);
  SUM(NULL, b, 4, FLOAT, 0);
  SUM(a, NULL, 4, FLOAT, 0);
  SUM(a + 1, b, 4, FLOAT, 0);
  SUM(other->memory[1], b, 4, FLOAT, 0);
  SUM(a, r->before[0], 4, FLOAT, 0);
  SAY(ncclReduce((void *)a, (void *)b, 4, FLOAT, 0, ranks, r->comm, r->stream));
  SAY(ncclAlltoAll((void *)a, (void *)a, 4, FLOAT, r->comm, r->stream));
  SAY(ncclAllReduce((void *)a, (void *)b, 4, FLOAT, 0, r->comm, other->stream));
  SAY(ncclRedOpCreatePreMulSum(&op, (void *)&scalar, TYPES, 1, r->comm));
  SAY(ncclRedOpCreatePreMulSum(NULL, (void *)&scalar, FLOAT, 1, r->comm));
  CHECK(ncclRedOpCreatePreMulSum(&op, (void *)&scalar, FLOAT, 1, r->comm));
  CHECK(ncclRedOpCreatePreMulSum(&others, (void *)&scalar, FLOAT, 1, other->comm));
  SUM(a, b, 4, INT, op);
  SUM(a, b, 4, FLOAT, others);
  CHECK(ncclRedOpDestroy(op, r->comm));
  SUM(a, b, 4, FLOAT, op);
  SAY(ncclRedOpDestroy(op, r->comm));
  CHECK(ncclGroupStart());
  CHECK(ncclAllReduce((void *)a, (void *)b, 4, FLOAT, 0, r->comm, r->stream));
  SUM(a, b, 4, TYPES, 0);
  SAY(ncclGroupEnd());
  send_wrongly(r, other);
  /* What sley lacks kernels for goes to NCCL. */
  SUM(a, b, 4, DOUBLE, 0);
  CHECK(ncclRedOpCreatePreMulSum(&op, (void *)&scalar, INT, 1, r->comm));
  SUM(a, b, 4, INT, op);
  if (real != NULL) fputs(((const char *(*)(void))dlsym(real, "stand_in_journal"))(), stdout);
}

static void turn_to(struct rank *r) {
  void *before;
  CHECK(cuCtxPopCurrent(&before));
  CHECK(cuCtxPushCurrent(r->context));
}

/* Calls for which NCCL's communicators are made: refused in a capture, then two of each rank, one with a
 * config and a reduction that last only for the call. */
static void make_lacking_calls(struct rank *all) {
  enum { INT = 2, DOUBLE = 8 };
  void *graph, *real = dlopen(getenv("SLEY_NCCL_LIBRARY"), RTLD_NOW);
  struct rank *r;
  int turn, k;
  for (turn = 0; turn < 3; ++turn) {
    CHECK(ncclGroupStart());
    for (k = 0; k < ranks; ++k) {
      uint32_t scalar = 0;
      ncclRedOp_t op;
      void *from, *to;
      r = &all[k];
      from = (void *)r->memory[0], to = (void *)r->memory[1];
      turn_to(r);
      if (turn == 0 && k == 0) CHECK(cuStreamBeginCapture(r->stream, 1));
#if NCCL_VERSION_CODE >= 23100
      if (turn == 1) CHECK(ncclAllReduceConfig(from, to, 4, DOUBLE, 0, r->comm, r->stream, (void *)&k));
#endif
      CHECK(ncclRedOpCreatePreMulSum(&op, &scalar, INT, 1, r->comm));
      CHECK(ncclAllReduce(from, to, 4, INT, op, r->comm, r->stream));
      CHECK(ncclRedOpDestroy(op, r->comm));
    }
    SAY(ncclGroupEnd());
    if (turn > 0) continue;
    turn_to(&all[0]);
    CHECK(cuStreamEndCapture(all[0].stream, &graph));
  }
  fputs(((const char *(*)(void))dlsym(real, "stand_in_journal"))(), stdout);
}

/* Rank 1 aborts while rank 0's kernel waits for it. */
static void abort_call(struct rank *waiting, struct rank *other) {
  ncclResult_t state = 0;
  const void *from = (void *)waiting->memory[0];
  void *to = (void *)waiting->memory[1];
  int tries;
  CHECK(ncclAllReduce(from, to, 64, 7, 0, waiting->comm, waiting->stream));
  CHECK(ncclCommGetAsyncError(waiting->comm, &state));
  check(state == 0, "there is no error yet", state);
  CHECK(ncclCommAbort(other->comm));
  CHECK(cuStreamSynchronize(waiting->stream));
  for (tries = 0; tries < 2000 && state == 0; ++tries) {
    usleep(10000);
    CHECK(ncclCommGetAsyncError(waiting->comm, &state));
  }
  printf("%d\n", state);
  SAY(ncclAllReduce(from, to, 64, 7, 0, waiting->comm, waiting->stream));
  CHECK(ncclCommAbort(waiting->comm));
}

/* Rank 1 takes more than rank 0 sends, which leaves as soon as it knows that calls were given up. */
static void send_unequally(struct rank *sending, struct rank *other) {
  ncclResult_t state = 0;
  CHECK(ncclSend((void *)sending->memory[0], 1, 1, 1, sending->comm, sending->stream));
  turn_to(other);
  CHECK(ncclRecv((void *)other->memory[1], 2, 1, 0, other->comm, other->stream));
  while (state == 0) CHECK(ncclCommGetAsyncError(sending->comm, &state));
  CHECK(ncclCommAbort(sending->comm));
  SAY((ncclCommGetAsyncError(other->comm, &state), state));
  CHECK(ncclCommAbort(other->comm));
}

struct own { pthread_t thread; int number; ncclUniqueId id; };

/* Whether two calls have messages that no group can have: all or none are captured, by one graph. */
static int are_captured_apart(const struct call *two) {
  return two[0].kind >= SHIFT && two[1].kind >= SHIFT && (two[0].stream == 2 || two[1].stream == 2);
}

/* Two calls in a group, each with memory and a stream of its own. */
static void *run_rank(void *given) {
  struct own *own = given;
  struct rank r[2];
  int i, k, calls_now;
  for (k = 0; k < 2; ++k) open_rank(&r[k], own->number);
  r[0].out = r[1].out = output_of(own->number);
  CHECK(ncclCommInitRank(&r[0].comm, ranks, own->id, own->number));
  r[1].comm = r[0].comm;
  if (opened_ends[1] != 0) check(write(opened_ends[1], "", 1) == 1, "write", 0);
  for (i = 0; i < number_of_calls; i += calls_now) {
    calls_now = i + 1 < number_of_calls && !are_captured_apart(&calls[i]) ? 2 : 1;
    for (k = 0; k < calls_now; ++k) stage(&r[k], i + k);
    CHECK(ncclGroupStart());
    for (k = 0; k < calls_now; ++k) start(&r[k], &calls[i + k]);
    CHECK(ncclGroupEnd());
    for (k = 0; k < calls_now; ++k) launch_graph(&r[k], &calls[i + k]);
    for (k = 0; k < calls_now; ++k) finish(&r[k], i + k);
  }
  close_rank(&r[0]);
  return NULL;
}

/* Messages of two communicators in a group, which half of the ranks send in another order; a rank sends
 * and receives on one stream, or on two. Both streams wait for all. */
static void send_crosswise(struct rank *all) {
  ncclComm_t comms[MOST_RANKS][2];
  int streams, k, turn;
  size_t i;
  CHECK(ncclGroupStart());
  for (k = 0; k < ranks; ++k) {
    turn_to(&all[k]);
    comms[k][0] = all[k].comm;
    CHECK(ncclCommSplit(all[k].comm, 0, k, &comms[k][1], NULL));
  }
  CHECK(ncclGroupEnd());
  for (streams = 1; streams <= 2; ++streams) {
    for (k = 0; k < ranks; ++k) {
      for (i = 0; i < room; ++i) all[k].before[0][i] = (unsigned char)(i * 7 + i / 251 + k + streams);
      memset(all[k].after[0], 0, room);
    }
    for (k = 0; k < ranks; ++k) {
      turn_to(&all[k]);
      for (i = 0; i < 32; ++i) { /* so that the last one is late */
        CHECK(cuMemcpyHtoDAsync(all[k].memory[0], all[k].after[0], room, all[k].stream));
      }
      CHECK(cuMemcpyHtoDAsync(all[k].memory[0], all[k].before[0], room, all[k].stream));
    }
    CHECK(ncclGroupStart());
    for (k = 0; k < ranks; ++k) {
      void *own = all[k].stream, *other = streams == 1 ? own : all[k].other;
      for (turn = 0; turn < 2; ++turn) {
        const int which = (k + turn) % 2;
        const size_t at = which * (size_t)HALF_BYTES;
        ncclComm_t comm = comms[k][which];
        CHECK(ncclRecv((void *)(all[k].memory[1] + at), HALF_BYTES, 1, (k + ranks - 1) % ranks, comm,
                       other));
        CHECK(ncclSend((void *)(all[k].memory[0] + at), HALF_BYTES, 1, (k + 1) % ranks, comm, own));
      }
    }
    CHECK(ncclGroupEnd());
    for (k = 0; k < ranks; ++k) {
      turn_to(&all[k]);
      CHECK(cuMemcpyDtoHAsync(all[k].after[1], all[k].memory[1], room, all[k].stream));
      CHECK(cuStreamSynchronize(all[k].stream));
      check(memcmp(all[k].after[1], all[(k + ranks - 1) % ranks].before[0], 2 * HALF_BYTES) == 0,
            "what was sent arrives", k);
    }
  }
  CHECK(ncclGroupStart());
  for (k = 0; k < ranks; ++k) CHECK(ncclCommDestroy(comms[k][1]));
  CHECK(ncclGroupEnd());
}

static void run_group(const ncclUniqueId *id, const char *way) {
  static struct rank all[MOST_RANKS];
  int i, k;
  for (k = 0; k < ranks; ++k) open_rank(&all[k], k), all[k].out = output_of(k);
  CHECK(ncclGroupStart());
  for (k = 0; k < ranks; ++k) {
    turn_to(&all[k]);
    CHECK(ncclCommInitRank(&all[k].comm, ranks, *id, k));
  }
  CHECK(ncclGroupEnd());
  turn_to(&all[0]);
  if (strcmp(way, "aborted") == 0) return abort_call(&all[0], &all[1]);
  if (strcmp(way, "unequal") == 0) return send_unequally(&all[0], &all[1]);
  if (strcmp(way, "wrong") == 0) make_wrong_calls(&all[0], &all[1]);
  if (strcmp(way, "lacking") == 0) make_lacking_calls(all);
  /* Rank after rank more calls than one may be ahead of another. */
  CHECK(ncclGroupStart());
  for (k = 0; k < ranks; ++k) {
    void *own = (void *)all[k].memory[0];
    turn_to(&all[k]);
    for (i = 0; i < 150; ++i) CHECK(ncclAllReduce(own, own, 16, 7, 0, all[k].comm, all[k].stream));
  }
  CHECK(ncclGroupEnd());
  for (k = 0; k < ranks; ++k) {
    turn_to(&all[k]);
    CHECK(cuStreamSynchronize(all[k].stream));
  }
  send_crosswise(all);
  for (i = 0; i < number_of_calls; ++i) {
    for (k = 0; k < ranks; ++k) turn_to(&all[k]), stage(&all[k], i);
    CHECK(ncclGroupStart());
    for (k = 0; k < ranks; ++k) start(&all[k], &calls[i]);
    CHECK(ncclGroupEnd());
    for (k = 0; k < ranks; ++k) turn_to(&all[k]), launch_graph(&all[k], &calls[i]);
    for (k = 0; k < ranks; ++k) turn_to(&all[k]), finish(&all[k], i);
  }
  CHECK(ncclGroupStart());
  for (k = 0; k < ranks; ++k) close_rank(&all[k]);
  CHECK(ncclGroupEnd());
}

static void run_threads(const ncclUniqueId *id) {
  struct own own[MOST_RANKS];
  int k;
  for (k = 0; k < ranks; ++k) {
    own[k].number = k;
    own[k].id = *id;
    CHECK(pthread_create(&own[k].thread, NULL, run_rank, &own[k]));
  }
  for (k = 0; k < ranks; ++k) CHECK(pthread_join(own[k].thread, NULL));
}

/* Makes the ranks' id, and ends when all have opened: they do without this process. */
static void make_id(int to) {
  ncclUniqueId id;
  char any;
  int k;
  CHECK(ncclGetUniqueId(&id));
  for (k = 0; k < ranks; ++k) check(write(to, &id, sizeof id) == sizeof id, "write", k);
  for (k = 0; k < ranks; ++k) check(read(opened_ends[0], &any, 1) == 1, "read", k);
  exit(0);
}

/* The processes fork before they use the driver. */
static int run_processes(void) {
  int ends[2], k, status, failed = 0;
  CHECK(pipe(ends));
  CHECK(pipe(opened_ends));
  if (fork() == 0) make_id(ends[1]);
  for (k = 0; k < ranks; ++k) {
    struct own own;
    if (fork() != 0) continue;
    start_driver();
    own.number = k;
    check(read(ends[0], &own.id, sizeof own.id) == sizeof own.id, "read", k);
    run_rank(&own);
    exit(0);
  }
  for (k = 0; k <= ranks; ++k) {
    wait(&status);
    failed |= status;
  }
  return failed != 0;
}

static FILE *opened(const char *path) {
  FILE *file = fopen(path, "rb");
  check(file != NULL, path, 0);
  return file;
}

int main(int count, char **arguments) {
  struct call one;
  ncclUniqueId id;
  FILE *file;
  check(count == 6, "arguments", count);
  folder = arguments[3];
  ranks = atoi(arguments[4]);
  file = opened(arguments[1]);
  while (fscanf(file, "%d %d %d %zu %d %d %d", &one.kind, &one.type, &one.op, &one.count, &one.root,
                &one.stream, &one.config) == 7) {
    const size_t bytes = one.count * item_of[one.type] * ranks + GUARD;
    calls = realloc(calls, (number_of_calls + 1) * sizeof *calls);
    calls[number_of_calls++] = one;
    if (bytes > room) room = bytes;
  }
  file = opened(arguments[2]);
  check(fread(values, sizeof values, 1, file) == 1, "values", 0);
  if (strcmp(arguments[5], "processes") == 0) return run_processes();
  start_driver();
  CHECK(ncclGetUniqueId(&id));
  if (strcmp(arguments[5], "threads") == 0) {
    run_threads(&id);
  } else {
    run_group(&id, arguments[5]);
  }
  return 0;
}
