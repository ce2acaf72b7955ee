/* One rank of an MPI program that times collectives on command: what benchmarks/execute/contest.py measures as a peer.
 *
 * mpi_ranks FOLDER: rank r reads commands from FOLDER/r.in and answers on FOLDER/r.out (named pipes), so that a rank that has
 * nothing to do sleeps and leaves the core to the others. A command is "COLLECTIVE BYTES BATCHES CALLS"; the answer is the
 * nanoseconds of each batch of calls, or "wrong" if the result is not what it must be. BYTES is nccl-tests' size. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static const size_t kMost = 64u << 20;
static const size_t kPage = 2u << 20;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* As numpy allocates large arrays: huge pages where the system has them. */
static float* memory(void) {
  void* p = aligned_alloc(kPage, kMost);
  if (!p) exit(3);
  madvise(p, kMost, MADV_HUGEPAGE);
  memset(p, 0, kMost);
  return p;
}

static int call(const char* name, float* in, float* out, int count, int ranks) {
  const int part = count / ranks;
  if (!strcmp(name, "all_reduce")) return MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  if (!strcmp(name, "reduce_scatter")) return MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  if (!strcmp(name, "all_gather")) return MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
  if (!strcmp(name, "all_to_all")) return MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
  if (!strcmp(name, "broadcast")) return MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  return 1;
}

/* Rank r gives r + 1 everywhere; the first and the last element of the result tell. */
static int is_wrong(const char* name, const float* out, int count, int ranks, int rank) {
  const int last = !strcmp(name, "reduce_scatter") ? count / ranks - 1 : count - 1;
  float first_due = (float)(ranks * (ranks + 1) / 2), last_due = first_due;
  if (!strcmp(name, "all_gather") || !strcmp(name, "all_to_all")) first_due = 1, last_due = (float)ranks;
  if (!strcmp(name, "broadcast")) first_due = last_due = 1;
  (void)rank;
  return out[0] != first_due || out[last] != last_due;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
    int wanted = rank % CPU_COUNT(&cores);
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &cores) && wanted-- == 0) {
        CPU_ZERO(&cores);
        CPU_SET(core, &cores);
        sched_setaffinity(0, sizeof cores, &cores);
        break;
      }
  }
  char path[4096];
  snprintf(path, sizeof path, "%s/%d.in", argv[1], rank);
  FILE* commands = fopen(path, "r");
  snprintf(path, sizeof path, "%s/%d.out", argv[1], rank);
  FILE* answers = fopen(path, "w");
  if (!commands || !answers) return 2;
  float *in = memory(), *out = memory();
  char line[256], name[64];
  size_t bytes;
  int batches, calls;
  while (fgets(line, sizeof line, commands) && sscanf(line, "%63s %zu %d %d", name, &bytes, &batches, &calls) == 4) {
    const int count = (int)(bytes / sizeof(float));
    const int is_root = !strcmp(name, "broadcast") && rank == 0;
    for (int i = 0; i < count; ++i) in[i] = (float)(rank + 1);
    for (int i = 0; i < count; ++i) out[i] = is_root ? 1 : 0;
    if (call(name, in, out, count, ranks) || is_wrong(name, out, count, ranks, rank)) {
      fprintf(answers, "wrong\n");
      fflush(answers);
      continue;
    }
    for (int batch = 0; batch < batches; ++batch) {
      MPI_Barrier(MPI_COMM_WORLD);
      const int64_t begun = now_ns();
      for (int i = 0; i < calls; ++i) call(name, in, out, count, ranks);
      fprintf(answers, "%lld ", (long long)(now_ns() - begun));
    }
    fprintf(answers, "\n");
    fflush(answers);
  }
  MPI_Finalize();
  return 0;
}
