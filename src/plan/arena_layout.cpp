#include "plan/arena_layout.h"

#include <algorithm>
#include <numeric>

namespace ebb {

// Largest first, each at the lowest gap that fits among those placed before it and live at the same
// time.
Bytes lay_out(std::span<Buffer> buffers) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].in_arena() && buffers[i].size.count > 0) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (buffers[a].size != buffers[b].size) return buffers[a].size > buffers[b].size;
    return buffers[a].first != buffers[b].first ? buffers[a].first < buffers[b].first : a < b;
  });
  std::vector<const Buffer*> placed;  // by offset
  Bytes total;
  for (std::size_t index : order) {
    Buffer& buffer = buffers[index];
    Bytes offset;
    for (const Buffer* other : placed) {
      if (other->last < buffer.first || other->first > buffer.last) continue;
      if (other->offset >= offset + buffer.size) break;
      offset = std::max(offset, other->offset + other->size);
    }
    buffer.offset = offset;
    total = std::max(total, offset + buffer.size);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), &buffer,
                         [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; }),
        &buffer);
  }
  return total;
}

LivePeak live_peak(std::span<const Buffer> buffers, int instructions) {
  std::vector<Bytes> change(static_cast<std::size_t>(instructions) + 2);
  for (const Buffer& buffer : buffers)
    if (buffer.in_arena()) {
      change[static_cast<std::size_t>(buffer.first)] += buffer.size;
      change[static_cast<std::size_t>(buffer.last) + 1] -= buffer.size;
    }
  LivePeak peak;
  Bytes live;
  for (int i = 0; i <= instructions; ++i) {
    live += change[static_cast<std::size_t>(i)];
    if (live > peak.bytes) peak = {live, i};
  }
  return peak;
}

}  // namespace ebb
