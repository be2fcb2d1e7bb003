/* What the module that is linked with MPI offers. Every function returns 0, or an MPI error whose
   text ebb_mpi_error gives. */
#pragma once

#include <cstddef>

extern "C" {

struct EbbMpi {
  int (*start)(int* rank, int* size);
  // The same number of bytes from every rank, in order.
  int (*all_gather)(const void* own, void* all, int bytes);
  // Begin to send to a rank, or to receive from it. Both return at once; the bytes must stay.
  int (*send)(int rank, const void* bytes, std::size_t count, int tag);
  int (*receive)(int rank, void* bytes, std::size_t count, int tag);
  // Whether everything that was begun is done.
  int (*test)(int* done);
  int (*finish)();
  const char* (*error)(int code);
};

const EbbMpi* ebb_mpi_module();
}
