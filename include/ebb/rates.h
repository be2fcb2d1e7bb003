// Throughputs of a device, from which the planner predicts times.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/op.h"
#include "ebb/tier.h"

namespace ebb {

// Operations per second of one kind of work, by dtype: a processor may have instructions for one
// half type and not for the other. The unit of elementwise work is an addition in the first-level
// cache; other functions count as their time divided by that of an addition (see
// PointwiseRow::work).
struct WorkRate {
  double f32 = 0.0, bf16 = 0.0, f16 = 0.0, f64 = 0.0;
};

// Throughput between the device and another tier of memory, in bytes per second.
struct Link {
  double fetch = 0.0, store = 0.0;
};

// What connects the ranks of a run: the bytes per second that one rank sends while it receives as
// many, and the fixed cost of one exchange.
struct RankLink {
  double bandwidth = 1e9;
  double latency_us = 50.0;
};

// The defaults are typical of two cores of a current server processor.
struct Rates {
  std::string name = "two CPU cores";
  Device::Kind kind = Device::Kind::cpu;
  Bytes memory = {};        // 0: not known
  double bandwidth = 20e9;  // of main memory in bytes per second, read plus written
  double launch_us = 0.3;   // fixed cost of one instruction, in microseconds
  // The first `cache` bytes that an instruction moves are assumed to hit the cache.
  Bytes cache = 8_MiB;
  double cache_bandwidth = 80e9;
  // Whether arithmetic and memory traffic of a kernel overlap, as on a GPU: then its time is the
  // longer of both, otherwise their sum.
  bool overlaps = false;
  std::array<WorkRate, work_count> work{{
      {40e9, 28e9, 28e9, 8e9},       // elementwise
      {200e9, 400e9, 180e9, 100e9},  // product
      {220e9, 200e9, 200e9, 70e9},   // attention
      {220e9, 340e9, 200e9, 75e9},   // convolution
  }};

  ByTier<Link> links{{{{}, {20e9, 20e9}, {1.5e9, 1e9}}}};

  // Correction factors of ops whose kernels take longer or shorter than predicted from their
  // arithmetic and bytes, by name: measured time divided by predicted time.
  std::map<std::string, double, std::less<>> factors = {};

  RankLink ranks = {};

  WorkRate& operator[](Work of) { return work[static_cast<std::size_t>(of)]; }
  const WorkRate& operator[](Work of) const { return work[static_cast<std::size_t>(of)]; }

  double seconds_to_move(Bytes bytes) const;
  // Milliseconds of a copy between the device and a tier.
  double transfer_ms(Tier tier, Bytes bytes, bool fetch) const;
  // Milliseconds in which a rank sends this many bytes and receives as many, in `exchanges`
  // exchanges.
  double exchange_ms(Bytes sent, std::int64_t exchanges) const;
  // Milliseconds of one call with this cost whose arithmetic is in this dtype.
  double predict_ms(const Cost& cost, DType dtype) const;
  double factor(std::string_view op) const;
};

}  // namespace ebb
