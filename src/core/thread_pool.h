// A thread pool with OpenMP's semantics: the caller takes part, and nested calls run in the calling
// thread. Only builds with EBB_PARALLEL=threads use it.
#pragma once

namespace ebb {

using PoolTask = void (*)(const void* body, int index);

// Calls task(body, i) for every i in [0, count), each i in a thread of its own; returns when all
// are done. Threads are started when first needed and kept; nothing is allocated after that.
void run_on_pool(int count, PoolTask task, const void* body);

template <class Body>
void run_on_pool(int count, const Body& body) {
  run_on_pool(
      count, [](const void* erased, int i) { (*static_cast<const Body*>(erased))(i); }, &body);
}

}  // namespace ebb
