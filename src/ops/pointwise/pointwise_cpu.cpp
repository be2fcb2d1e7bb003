// Runs a pointwise program tile by tile: every function works on a run of elements that stays in
// the first-level cache, so a chain of any length reads each input once and writes the result once.
#include <algorithm>
#include <array>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/pointwise/convert.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {
namespace {

// Elements. Three inputs, a few intermediate results and the output fit in the first-level cache,
// with room for what the prefetcher brings in.
constexpr std::int64_t tile = 512;
constexpr std::int64_t grain = 32 * tile;  // elements a thread takes at least

// How one input reaches a tile.
struct Source {
  enum class Kind { direct, scalar, strided } kind = Kind::direct;
  std::int64_t element_size = 0;
  GatherFunction gather = nullptr;
  Shape shape;      // of the output, neighbouring axes joined where this input allows
  Strides strides;  // of this input, 0 along broadcast axes
};

// One function to run. Operands and results are value numbers: inputs first, then steps.
struct Step {
  TileFunction function = nullptr;
  std::array<int, max_pointwise_arity> operands{};
  int arity = 0;
  Immediates numbers;
  void (*round)(float*, std::int64_t) = nullptr;
  bool constant = false;  // the same for all tiles: computed once per thread
};

struct Program {
  std::vector<Source> sources;
  std::vector<Step> steps;
  std::vector<int> registers;  // of each value; -1: read or written in place
  int register_count = 0;
  StoreFunction store = nullptr;
  std::int64_t elements = 0, out_size = 0;
  std::int64_t register_bytes = 0;  // a tile, or all elements if fewer, of the widest type in use
  int workers = 1;
};

Source make_source(const Arg& arg, const Shape& out) {
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
void load(const Source& source, const std::byte* data, std::int64_t begin, std::int64_t count,
          std::byte* out, std::int64_t out_size) {
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

// Gives each value a register, reusing those whose value has been read for the last time.
void assign_registers(Program& program) {
  const int inputs = static_cast<int>(program.sources.size()),
            steps = static_cast<int>(program.steps.size());
  std::vector<int> last_use(static_cast<std::size_t>(inputs + steps), -1);
  for (int s = 0; s < steps; ++s)
    for (int k = 0; k < program.steps[static_cast<std::size_t>(s)].arity; ++k)
      last_use[static_cast<std::size_t>(
          program.steps[static_cast<std::size_t>(s)].operands[static_cast<std::size_t>(k)])] = s;

  program.registers.assign(static_cast<std::size_t>(inputs + steps), -1);
  std::vector<int> free;
  const auto take = [&](int value) {
    int& slot = program.registers[static_cast<std::size_t>(value)];
    if (free.empty()) {
      slot = program.register_count++;
    } else {
      slot = free.back();
      free.pop_back();
    }
  };
  const auto lasting =
      [&](int value) {  // filled once per thread, so its register is never given away
        return value < inputs
                   ? program.sources[static_cast<std::size_t>(value)].kind == Source::Kind::scalar
                   : program.steps[static_cast<std::size_t>(value - inputs)].constant;
      };
  for (int value = 0; value < inputs + steps; ++value)
    if (lasting(value))
      program.registers[static_cast<std::size_t>(value)] = program.register_count++;
  for (int value = 0; value < inputs; ++value)
    if (program.sources[static_cast<std::size_t>(value)].kind == Source::Kind::strided) take(value);
  for (int s = 0; s < steps; ++s) {
    const Step& step = program.steps[static_cast<std::size_t>(s)];
    const bool writes_output = s == steps - 1 && !program.store;
    if (!writes_output && !step.constant) take(inputs + s);
    for (int k = 0; k < step.arity; ++k) {
      const int value = step.operands[static_cast<std::size_t>(k)];
      const int slot = program.registers[static_cast<std::size_t>(value)];
      const bool repeated = std::find(step.operands.begin(), step.operands.begin() + k, value) !=
                            step.operands.begin() + k;
      if (last_use[static_cast<std::size_t>(value)] == s && slot >= 0 && !lasting(value) &&
          !repeated)
        free.push_back(slot);
    }
  }
}

Program compile(const KernelRequest& request, const FusedAttributes& fused) {
  Program program;
  program.elements = request.out().shape().elements();
  program.out_size = size_of(request.out().dtype()).count;
  program.workers =
      static_cast<int>(std::clamp<std::int64_t>(program.elements / grain, 1, threads()));
  std::vector<DType> dtypes = fused.input_dtypes;
  for (const Arg& arg : request.inputs)
    program.sources.push_back(make_source(arg, request.out().shape()));
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
    program.steps.push_back(step);
    dtypes.push_back(instruction.dtype);
  }
  if (is_half(request.out().dtype())) program.store = store_tile(request.out().dtype());
  assign_registers(program);
  std::int64_t widest = 1;
  for (DType dtype : dtypes) widest = std::max(widest, tile_type_size(tile_type(dtype)));
  program.register_bytes =
      round_up({std::min(tile, program.elements) * widest}, buffer_alignment).count;
  return program;
}

// One thread's share of the elements.
class Worker {
 public:
  Worker(const Program& program, const KernelArgs& args, int index)
      : p_(program),
        args_(args),
        registers_(args.workspace + static_cast<std::int64_t>(index) * program.register_count *
                                        program.register_bytes) {
    for (std::size_t i = 0; i < p_.sources.size(); ++i)
      if (p_.sources[i].kind == Source::Kind::scalar)
        p_.sources[i].gather(args.inputs[i], 0, slot(i), span());
    for (std::size_t s = 0; s < p_.steps.size(); ++s)
      if (p_.steps[s].constant) step(s, 0, span(), slot(p_.sources.size() + s));
  }

  void run(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += tile) run_tile(i, std::min(tile, end - i));
  }

 private:
  std::int64_t span() const { return std::min(tile, p_.elements); }
  std::byte* slot(std::size_t value) const {
    return registers_ + p_.registers[value] * p_.register_bytes;
  }

  void run_tile(std::int64_t begin, std::int64_t count) {
    begin_ = begin;
    for (std::size_t i = 0; i < p_.sources.size(); ++i)
      if (p_.sources[i].kind == Source::Kind::strided)
        load(p_.sources[i], args_.inputs[i], begin, count, slot(i),
             tile_size(p_.sources[i].element_size));
    std::byte* out = args_.outputs[0] + begin * p_.out_size;
    for (std::size_t s = 0; s < p_.steps.size(); ++s) {
      if (p_.steps[s].constant) continue;
      const std::size_t value = p_.sources.size() + s;
      step(s, begin, count, p_.registers[value] >= 0 ? slot(value) : out);
    }
    if (p_.store) p_.store(slot(p_.registers.size() - 1), out, count);
  }

  // Half types are floats in tiles; the others have their own size.
  static std::int64_t tile_size(std::int64_t element_size) {
    return element_size == 2 ? 4 : element_size;
  }

  void step(std::size_t index, std::int64_t begin, std::int64_t count, std::byte* out) {
    const Step& s = p_.steps[index];
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

  const std::byte* value(std::size_t index) const {
    if (p_.registers[index] >= 0) return slot(index);
    return args_.inputs[index] + begin_ * p_.sources[index].element_size;  // direct
  }

  const Program& p_;
  const KernelArgs& args_;
  std::byte* registers_;
  std::int64_t begin_ = 0;
};

}  // namespace

Kernel bind_pointwise(const KernelRequest& request, const FusedAttributes& fused) {
  Program program = compile(request, fused);
  const Bytes workspace{static_cast<std::int64_t>(program.workers) * program.register_count *
                        program.register_bytes};
  return {.run =
              [program = std::move(program)](const KernelArgs& args) {
                parallel_for_workers(
                    (program.elements + tile - 1) / tile, grain / tile, program.workers,
                    [&](int worker, std::int64_t first, std::int64_t last) {
                      Worker(program, args, worker)
                          .run(first * tile, std::min(last * tile, program.elements));
                    });
              },
          .workspace = workspace};
}

}  // namespace ebb
