#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/parallel.h"
#include "ebb/decode.h"
#include "ops/cache_write_int8/cache_write_int8.h"
#include "ops/dispatch.h"

namespace ebb {
namespace {

using In = CacheWriteInt8;

// Codes and scale of one block. An infinity or NaN makes the scale NaN, so that decoded values are
// NaN too.
template <class T>
float pack(const T* from, std::int64_t count, std::uint8_t* codes) {
  float largest = 0.0f;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(static_cast<float>(from[i]));
    finite &= magnitude <= std::numeric_limits<float>::max();
    largest = std::max(largest, magnitude);
  }
  const float scale = largest / 127.0f;
  // A scale that rounds to zero would have an infinite inverse: such a block is stored as zero.
  const bool some = finite && scale >= std::numeric_limits<float>::min();
  const float inverse = some ? 1.0f / scale : 0.0f;
  for (std::int64_t i = 0; i < count; ++i) {
    const float level = some ? std::nearbyint(static_cast<float>(from[i]) * inverse) : 0.0f;
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(level) + int8_cache_zero);
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return some ? scale : 0.0f;
}

// Keys or values of a bound call.
struct Part {
  int fresh, codes, scales;  // operands
  std::int64_t size, blocks, batch_stride, head_stride, token_stride;

  Part(const KernelRequest& request, int x, int first)
      : fresh(x),
        codes(first),
        scales(first + 1),
        size(request.in(x).shape()[3]),
        blocks(int8_cache_blocks(size)),
        batch_stride(request.in(x).strides[0]),
        head_stride(request.in(x).strides[1]),
        token_stride(request.in(x).strides[2]) {}
};

template <class T>
class Write {
 public:
  explicit Write(const KernelRequest& request)
      : batches_(request.in(In::k).shape()[0]),
        heads_(request.in(In::k).shape()[1]),
        tokens_(request.in(In::k).shape()[2]),
        cache_rows_(request.in(In::keys).shape()[0]),
        cache_tokens_(request.in(In::keys).shape()[2]),
        parts_{Part(request, In::k, In::keys), Part(request, In::v, In::values)} {}

  void operator()(const KernelArgs& args) const {
    for (const Part& part : parts_) {
      const std::int64_t places = cache_rows_ * heads_ * cache_tokens_;
      copy_apart(args, part.codes, places * part.size);
      copy_apart(args, part.scales, places * part.blocks * 4);
    }
    const std::int32_t *positions = args.in<std::int32_t>(In::positions),
                       *rows = args.in<std::int32_t>(In::rows);
    const std::int64_t elements = heads_ * (parts_[0].size + parts_[1].size);
    parallel_for(batches_ * tokens_,
                 std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, elements)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t token = begin; token < end; ++token) {
                     const std::int64_t b = token / tokens_, t = token % tokens_;
                     const std::int64_t position = positions[token], row = rows[b];
                     if (position < 0) continue;
                     if (position >= cache_tokens_)
                       args.fault->out_of_range(token, position, cache_tokens_);
                     else if (row < 0 || row >= cache_rows_)
                       args.fault->out_of_range(b, row, cache_rows_);
                     else
                       for (const Part& part : parts_) write(args, part, b, t, row, position);
                   }
                 });
  }

 private:
  static void copy_apart(const KernelArgs& args, int operand, std::int64_t bytes) {
    const auto i = static_cast<std::size_t>(operand);
    if (args.inputs[i] != args.outputs[i])
      std::memcpy(args.outputs[i], args.inputs[i], static_cast<std::size_t>(bytes));
  }

  void write(const KernelArgs& args, const Part& part, std::int64_t b, std::int64_t t,
             std::int64_t row, std::int64_t position) const {
    for (std::int64_t h = 0; h < heads_; ++h) {
      const T* from = args.in<T>(part.fresh) + b * part.batch_stride + h * part.head_stride +
                      t * part.token_stride;
      const std::int64_t place = (row * heads_ + h) * cache_tokens_ + position;
      std::uint8_t* codes = args.out<std::uint8_t>(part.codes) + place * part.size;
      float* scales = args.out<float>(part.scales) + place * part.blocks;
      for (std::int64_t at = 0; at < part.size; at += int8_cache_block)
        *scales++ = pack(from + at, std::min(int8_cache_block, part.size - at), codes + at);
    }
  }

  std::int64_t batches_, heads_, tokens_, cache_rows_, cache_tokens_;
  Part parts_[2];
};

}  // namespace

Kernel bind_cache_write_int8_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_floating(request, request.in(In::k).dtype(), [&](auto tag) {
    return Kernel{Write<typename decltype(tag)::type>(request)};
  });
}

}  // namespace ebb
