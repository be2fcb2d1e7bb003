// Tasks packed one after another into the argument of a kernel.
#pragma once

#include <cstring>

#include "ops/resident/task.h"

namespace ebb::cuda {

enum class TaskKind : std::int32_t { product, norm, elementwise, rotary, cache_writing, attention };

struct TaskHeader {
  TaskKind kind;
  std::int32_t waits;  // 1: every block waits for all others first
  std::int32_t next;   // offset of the next header
  std::int32_t end;    // 1: there is none
};

// A kernel's arguments may take 32,764 bytes.
struct TaskList {
  static constexpr std::int32_t capacity = 32640;
  std::int32_t bytes = 0, last = -1, last_product = -1, first_product = -1;
  alignas(16) unsigned char data[capacity];

  template <class T>
  __host__ __device__ const T& at(std::int32_t offset) const {
    return *reinterpret_cast<const T*>(data + offset + sizeof(TaskHeader));
  }
  __host__ __device__ const TaskHeader& header(std::int32_t offset) const {
    return *reinterpret_cast<const TaskHeader*>(data + offset);
  }

  // Adds a task if there is room; returns whether it was added.
  template <class T>
  bool add(TaskKind kind, bool waits, const T& task) {
    constexpr std::int32_t size =
        static_cast<std::int32_t>((sizeof(TaskHeader) + sizeof(T) + 15) / 16 * 16);
    if (bytes + size > capacity) return false;
    const TaskHeader header{kind, waits ? 1 : 0, bytes + size, 1};
    std::memcpy(data + bytes, &header, sizeof header);
    std::memcpy(data + bytes + sizeof header, &task, sizeof task);
    if (last >= 0) reinterpret_cast<TaskHeader*>(data + last)->end = 0;
    if (kind == TaskKind::product) {
      if (last_product >= 0)
        reinterpret_cast<resident::Product*>(data + last_product + sizeof header)->next = bytes;
      else
        first_product = bytes;
      last_product = bytes;
    }
    last = bytes;
    bytes += size;
    return true;
  }
};
static_assert(sizeof(TaskList) <= 32764);

}  // namespace ebb::cuda
