#include "ops/pointwise/tile_program.h"

#include "ebb/storage.h"
#include "ebb/threads.h"

namespace ebb {
namespace {

// Half types are floats in tiles; the others have their own size.
std::int64_t tile_size(std::int64_t element_size) { return element_size == 2 ? 4 : element_size; }

TileProgram::Source make_source(const Arg& arg, const Shape& out) {
  using Source = TileProgram::Source;
  Source source;
  source.element_size = size_of(arg.dtype()).count;
  source.gather = gather_tile(arg.dtype());
  if (arg.shape().elements() == 1) {
    source.kind = Source::Kind::scalar;
    return source;
  }
  if (arg.shape() == out && arg.contiguous() && !is_half(arg.dtype())) return source;

  source.kind = Source::Kind::strided;
  const int lead = out.rank() - arg.shape().rank();
  for (int i = 0; i < out.rank(); ++i) {
    if (out[i] == 1) continue;
    const bool broadcast_axis = i < lead || arg.shape()[i - lead] == 1;
    const std::int64_t stride = broadcast_axis ? 0 : arg.strides[i - lead];
    const int last = source.shape.rank() - 1;
    if (last >= 0 && source.strides[last] == stride * out[i]) {
      source.shape[last] *= out[i];
      source.strides[last] = stride;
    } else {
      source.shape.push_back(out[i]);
      source.strides.push_back(stride);
    }
  }
  return source;
}

// Gathers elements [begin, begin + count) of the output's order.
void load(const TileProgram::Source& source, const std::byte* data, std::int64_t begin,
          std::int64_t count, std::byte* out, std::int64_t out_size) {
  std::array<std::int64_t, max_rank> position{};
  const int last = source.shape.rank() - 1;
  std::int64_t rest = begin, offset = 0;
  for (int i = last; i >= 0; --i) {
    position[static_cast<std::size_t>(i)] = rest % source.shape[i];
    rest /= source.shape[i];
    offset += position[static_cast<std::size_t>(i)] * source.strides[i];
  }
  while (count > 0) {
    const std::int64_t run =
        std::min(count, source.shape[last] - position[static_cast<std::size_t>(last)]);
    source.gather(data + offset * source.element_size, source.strides[last], out, run);
    out += run * out_size;
    count -= run;
    position[static_cast<std::size_t>(last)] += run;
    offset += run * source.strides[last];
    for (int i = last; i > 0 && position[static_cast<std::size_t>(i)] == source.shape[i]; --i) {
      offset += source.strides[i - 1] - source.shape[i] * source.strides[i];
      position[static_cast<std::size_t>(i)] = 0;
      ++position[static_cast<std::size_t>(i - 1)];
    }
  }
}

}  // namespace

// Gives each value a register, reusing those whose value has been read for the last time.
void TileProgram::assign_registers() {
  const int inputs = static_cast<int>(sources.size()), count = static_cast<int>(steps.size()),
            last = count - 1;
  std::vector<int> last_use(static_cast<std::size_t>(inputs + count), -1);
  for (int s = 0; s < count; ++s)
    for (int k = 0; k < steps[static_cast<std::size_t>(s)].arity; ++k)
      last_use[static_cast<std::size_t>(
          steps[static_cast<std::size_t>(s)].operands[static_cast<std::size_t>(k)])] = s;

  registers.assign(static_cast<std::size_t>(inputs + count), -1);
  std::vector<int> free;
  const auto take = [&](int value) {
    int& slot = registers[static_cast<std::size_t>(value)];
    if (free.empty()) {
      slot = register_count++;
    } else {
      slot = free.back();
      free.pop_back();
    }
  };
  const auto lasting =
      [&](int value) {  // filled once per thread, so its register is never given away
        return value < inputs
                   ? sources[static_cast<std::size_t>(value)].kind == Source::Kind::scalar
                   : steps[static_cast<std::size_t>(value - inputs)].constant;
      };
  for (int value = 0; value < inputs + count; ++value)
    if (lasting(value)) registers[static_cast<std::size_t>(value)] = register_count++;
  for (int value = 0; value < inputs; ++value)
    if (sources[static_cast<std::size_t>(value)].kind == Source::Kind::strided) take(value);
  for (int s = 0; s < count; ++s) {
    const Step& step = steps[static_cast<std::size_t>(s)];
    const bool in_place = s == last && result == Result::written && !store;
    if (!in_place && !step.constant) take(inputs + s);
    for (int k = 0; k < step.arity; ++k) {
      const int value = step.operands[static_cast<std::size_t>(k)];
      const int slot = registers[static_cast<std::size_t>(value)];
      const bool repeated = std::find(step.operands.begin(), step.operands.begin() + k, value) !=
                            step.operands.begin() + k;
      if (last_use[static_cast<std::size_t>(value)] == s && slot >= 0 && !lasting(value) &&
          !repeated)
        free.push_back(slot);
    }
  }
}

TileProgram::TileProgram(const KernelRequest& request, const FusedAttributes& fused, Result where)
    : result(where) {
  const DType out_dtype = fused.code.back().dtype;
  elements = fused.shape.elements();
  out_size = size_of(out_dtype).count;
  workers = static_cast<int>(std::clamp<std::int64_t>(elements / grain, 1, threads()));
  std::vector<DType> dtypes = fused.input_dtypes;
  for (const Arg& arg : request.inputs) sources.push_back(make_source(arg, fused.shape));
  for (const PointwiseInstruction& instruction : fused.code) {
    Step step;
    step.arity = instruction.row->arity;
    for (int k = 0; k < step.arity; ++k)
      step.operands[static_cast<std::size_t>(k)] =
          instruction.operands[static_cast<std::size_t>(k)];
    step.numbers = instruction.numbers;
    const DType key = step.arity > 0 ? dtypes[static_cast<std::size_t>(instruction.operands.back())]
                                     : instruction.dtype;
    step.function = instruction.row->name == "cast"
                        ? cast_tile(key, instruction.dtype)
                        : instruction.row->tiles[static_cast<std::size_t>(tile_type(key))];
    if (!step.function) request.no_kernel(key);
    if (instruction.dtype == f16) step.round = round_to_half;
    if (instruction.dtype == bf16) step.round = round_to_bfloat16;
    step.constant = instruction.row->name == "full" && fused.code.size() > 1;
    steps.push_back(step);
    dtypes.push_back(instruction.dtype);
  }
  if (is_half(out_dtype) && result == Result::written) store = store_tile(out_dtype);
  assign_registers();
  std::int64_t widest = 1;
  for (DType dtype : dtypes) widest = std::max(widest, tile_type_size(tile_type(dtype)));
  register_bytes = round_up({std::min(tile, elements) * widest}, buffer_alignment).count;
}

TileWorker::TileWorker(const TileProgram& program, const KernelArgs& args, int index)
    : p_(program),
      args_(args),
      registers_(args.workspace + static_cast<std::int64_t>(index) * program.register_count *
                                      program.register_bytes) {
  for (std::size_t i = 0; i < p_.sources.size(); ++i)
    if (p_.sources[i].kind == TileProgram::Source::Kind::scalar)
      p_.sources[i].gather(args.inputs[i], 0, slot(i), span());
  for (std::size_t s = 0; s < p_.steps.size(); ++s)
    if (p_.steps[s].constant) step(s, 0, span(), slot(p_.sources.size() + s));
}

void TileWorker::run_tile(std::int64_t begin, std::int64_t count) {
  begin_ = begin;
  for (std::size_t i = 0; i < p_.sources.size(); ++i)
    if (p_.sources[i].kind == TileProgram::Source::Kind::strided)
      load(p_.sources[i], args_.inputs[i], begin, count, slot(i),
           tile_size(p_.sources[i].element_size));
  std::byte* out =
      p_.result == TileProgram::Result::written ? args_.outputs[0] + begin * p_.out_size : nullptr;
  for (std::size_t s = 0; s < p_.steps.size(); ++s) {
    if (p_.steps[s].constant) continue;
    const std::size_t value = p_.sources.size() + s;
    step(s, begin, count, p_.registers[value] >= 0 ? slot(value) : out);
  }
  if (p_.store) p_.store(slot(p_.registers.size() - 1), out, count);
}

void TileWorker::step(std::size_t index, std::int64_t begin, std::int64_t count, std::byte* out) {
  const TileProgram::Step& s = p_.steps[index];
  TileArgs t;
  for (int k = 0; k < s.arity; ++k)
    t.in[static_cast<std::size_t>(k)] =
        value(static_cast<std::size_t>(s.operands[static_cast<std::size_t>(k)]));
  t.out = out;
  t.count = count;
  t.begin = begin;
  t.immediates = &s.numbers;
  t.random = args_.random;
  s.function(t);
  if (s.round) s.round(reinterpret_cast<float*>(out), count);
}

}  // namespace ebb
