// The block of memory that programs run in. Programs that share an arena (training and evaluation,
// batches of several shapes, the levels of a multilevel problem) run one at a time, so the arena is
// as large as the largest of them needs.
#pragma once

#include <cstdint>
#include <memory>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/machine.h"

namespace ebb {

class Storage;

class Arena {
 public:
  explicit Arena(Device device = device::cpu, const MachineOptions& machine = {});
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Device device() const { return device_; }
  Bytes size() const;
  Bytes resident() const;  // how much of it is resident memory now

  // Grows the arena to at least this size. Growing discards the contents: programs keep nothing
  // there between runs.
  void reserve(Bytes size);
  std::byte* data() const;

  // Which requests of MachineOptions were granted for this memory.
  const MachineReport& report() const { return report_; }

  // Changes whenever `data()` changes, so that programs know when to update their addresses.
  std::uint64_t generation() const { return generation_; }

  // Programs write their inputs into the arena before they run. A program calls `claim` when it
  // does; while `holder` is still that program, its inputs have not been overwritten.
  void claim(const void* program) { holder_ = program; }
  const void* holder() const { return holder_; }

 private:
  Device device_;
  MachineOptions machine_;
  MachineReport report_;
  std::shared_ptr<Storage> storage_;
  std::uint64_t generation_ = 0;
  const void* holder_ = nullptr;
};

}  // namespace ebb
