// The only source that knows MPI's header: a module of its own, so that ebb starts without MPI.
#include "dist/mpi_plugin.h"

#include <mpi.h>

#include <algorithm>
#include <vector>

namespace {

std::vector<MPI_Request>& pending() {
  static std::vector<MPI_Request> requests;
  return requests;
}

constexpr std::size_t largest = std::size_t{1} << 30;  // bytes of one message; counts are ints

template <class Begin>
int in_messages(std::size_t count, const Begin& begin) {
  for (std::size_t at = 0; at < count; at += largest) {
    MPI_Request request;
    const int error = begin(at, static_cast<int>(std::min(largest, count - at)), &request);
    if (error != MPI_SUCCESS) return error;
    pending().push_back(request);
  }
  return 0;
}

int start(int* rank, int* size) {
  int provided = 0, error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (error == 0) error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (error == 0) error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  if (error == 0) error = MPI_Comm_size(MPI_COMM_WORLD, size);
  return error;
}

int all_gather(const void* own, void* all, int bytes) {
  return MPI_Allgather(own, bytes, MPI_BYTE, all, bytes, MPI_BYTE, MPI_COMM_WORLD);
}

int send(int rank, const void* bytes, std::size_t count, int tag) {
  return in_messages(count, [&](std::size_t at, int size, MPI_Request* request) {
    return MPI_Isend(static_cast<const char*>(bytes) + at, size, MPI_BYTE, rank, tag,
                     MPI_COMM_WORLD, request);
  });
}

int receive(int rank, void* bytes, std::size_t count, int tag) {
  return in_messages(count, [&](std::size_t at, int size, MPI_Request* request) {
    return MPI_Irecv(static_cast<char*>(bytes) + at, size, MPI_BYTE, rank, tag, MPI_COMM_WORLD,
                     request);
  });
}

int test(int* done) {
  const int error =
      MPI_Testall(static_cast<int>(pending().size()), pending().data(), done, MPI_STATUSES_IGNORE);
  if (error == 0 && *done) pending().clear();
  return error;
}

int finish() { return MPI_Finalize(); }

const char* text_of(int code) {
  static char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "an unknown error of MPI";
  return text;
}

constexpr EbbMpi module{start, all_gather, send, receive, test, finish, text_of};

}  // namespace

const EbbMpi* ebb_mpi_module() { return &module; }
