// Shared by oneDNN kernels. Scratchpads come from the kernel's workspace, so that they are planned.
#pragma once

#include <oneapi/dnnl/dnnl_debug.h>

#include <array>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>

#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb::onednn {

// With AMX's tiles, oneDNN's convolutions end the process by an illegal instruction on some
// machines, although AMX itself works there. So the instructions before AMX are used, unless the
// environment chooses others.
inline void leave_out_amx() {
  static const bool done = [] {
    if (!std::getenv("ONEDNN_MAX_CPU_ISA") && !std::getenv("DNNL_MAX_CPU_ISA"))
      (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    return true;
  }();
  (void)done;
}

inline bool has_isa(dnnl::cpu_isa wanted) {
  leave_out_amx();
  const int isa = static_cast<int>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<int>(wanted)) == static_cast<int>(wanted);
}

inline const dnnl::engine& engine() {
  leave_out_amx();
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// A memory object whose bytes are given later.
inline dnnl::memory place(const dnnl::memory::desc& desc) {
  return dnnl::memory(desc, engine(), nullptr);
}

inline Bytes bytes(const dnnl::memory::desc& desc) {
  return round_up(Bytes{static_cast<std::int64_t>(desc.get_size())}, buffer_alignment);
}

template <std::size_t count>
void execute(std::string_view op, const dnnl::primitive& primitive, const dnnl::stream& stream,
             const std::array<dnnl_exec_arg_t, count>& args) {
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(count), args.data());
  if (status != dnnl_success)
    throw Error("[" + std::string(op) +
                "] oneDNN failed while running: " + dnnl_status2str(status));
}

// Refuses a primitive that runs oneDNN's reference loops, because ebb's kernels are faster.
template <class PrimitiveDesc>
void refuse_loops(const PrimitiveDesc& desc) {
  if (std::string_view(desc.impl_info_str()).starts_with("ref"))
    throw dnnl::error(dnnl_unimplemented, "only a reference kernel");
}

}  // namespace ebb::onednn
