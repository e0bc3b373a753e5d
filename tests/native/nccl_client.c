/* A client of NCCL in C, compiled with each version's header: communicators of two ranks in one
 * thread, a config, a group of calls, a split, and an error. */
#include <nccl.h>
#include <stdio.h>

#define CHECK(call, expected)                                                     \
  do {                                                                            \
    ncclResult_t result = (call);                                                 \
    if (result != (expected)) {                                                   \
      fprintf(stderr, "%s: %d, %s\n", #call, result, ncclGetLastError(NULL));     \
      return 1;                                                                   \
    }                                                                             \
  } while (0)

int main(void) {
  int version = 0, ranks[2] = {0, 1}, i, count = 0;
  float data[2][4] = {{0}};
  ncclUniqueId id;
  ncclComm_t comms[2], all[2], parts[2];
  ncclResult_t state = ncclInternalError;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.commName = "client";
  CHECK(ncclGetVersion(&version), ncclSuccess);
  CHECK(ncclGetUniqueId(&id), ncclSuccess);
  CHECK(ncclGroupStart(), ncclSuccess);
  for (i = 0; i < 2; ++i) CHECK(ncclCommInitRankConfig(&comms[i], 2, id, i, &config), ncclSuccess);
  CHECK(ncclGroupEnd(), ncclSuccess);
  CHECK(ncclCommInitAll(all, 2, ranks), ncclSuccess);
  CHECK(ncclGroupStart(), ncclSuccess);
  for (i = 0; i < 2; ++i) {
    CHECK(ncclAllReduce(data[i], data[i], 4, ncclFloat, ncclAvg, comms[i], NULL), ncclSuccess);
    CHECK(ncclSend(data[i], 4, ncclFloat, 1 - i, comms[i], NULL), ncclSuccess);
    CHECK(ncclRecv(data[i], 4, ncclFloat, 1 - i, comms[i], NULL), ncclSuccess);
    CHECK(ncclCommSplit(all[i], 0, i, &parts[i], &config), ncclSuccess);
  }
  CHECK(ncclGroupEnd(), ncclSuccess);
  for (i = 0; i < 2; ++i) {
    CHECK(ncclCommGetAsyncError(parts[i], &state), ncclSuccess);
    CHECK(state, ncclSuccess);
    CHECK(ncclCommCount(parts[i], &count), ncclSuccess);
    CHECK(ncclCommFinalize(comms[i]), ncclSuccess);
    CHECK(ncclCommDestroy(comms[i]), ncclSuccess);
    CHECK(ncclCommDestroy(comms[i]), ncclInvalidArgument);
    CHECK(ncclCommAbort(parts[i]), ncclSuccess);
    CHECK(ncclCommDestroy(all[i]), ncclSuccess);
  }
  printf("%d compiled with %d, last %d\n", version, NCCL_VERSION_CODE, count);
  return 0;
}
