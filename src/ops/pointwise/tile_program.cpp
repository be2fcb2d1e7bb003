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

// Joins steps that have links to the only step that reads their result. A step takes one other at
// most into its chain; of two, the first.
void TileProgram::join_chains() {
  const auto at = [&](int step) -> Step& { return steps[static_cast<std::size_t>(step)]; };
  const int inputs = static_cast<int>(sources.size()), count = static_cast<int>(steps.size());
  std::vector<std::vector<int>> readers(steps.size());
  for (int s = 0; s < count; ++s)
    for (const int value : at(s).operands)
      if (value >= inputs) readers[static_cast<std::size_t>(value - inputs)].push_back(s);

  for (int s = 0; s < count; ++s) {
    Step& step = at(s);
    if (readers[static_cast<std::size_t>(s)].size() != 1 || !step.in_floats) continue;
    if (step.chain.empty()) step.link = chain::starting_link(*step.row);
    const int reader = readers[static_cast<std::size_t>(s)].front();
    Step& next = at(reader);
    const auto handed = static_cast<std::size_t>(std::ranges::find(next.operands, inputs + s) -
                                                 next.operands.begin());
    const chain::Link link = chain::taking_link(*next.row, handed);
    if (!step.link.function || !link.function || !next.in_floats || !next.chain.empty() ||
        step.chain.size() + 2 > longest_chain)
      continue;
    next.link = link, next.handed = handed;
    next.chain = step.chain.empty() ? std::vector{s} : std::move(step.chain);
    next.chain.push_back(reader);
    step.joined = true, step.chain.clear();
  }
  for (Step& step : steps)
    if (step.chain.empty())
      step.reads = step.operands;
    else
      bind_chain(step);
}

void TileProgram::bind_chain(Step& last) const {
  last.links = {chain::first_link()};
  for (const int s : last.chain) {
    const Step& part = steps[static_cast<std::size_t>(s)];
    last.links.push_back(part.link);
    for (std::size_t k = 0; k < part.operands.size(); ++k)
      if (s == last.chain.front() || k != part.handed) last.reads.push_back(part.operands[k]);
  }
  last.links.push_back(chain::last_link());
  for (int i = 0; i < static_cast<int>(sources.size()); ++i)
    if (sources[static_cast<std::size_t>(i)].kind == Source::Kind::direct &&
        std::ranges::find(last.reads, i) != last.reads.end())
      last.streams.push_back(i);
}

// Gives each value a register, reusing those whose value has been read for the last time.
void TileProgram::assign_registers() {
  const int inputs = static_cast<int>(sources.size()), count = static_cast<int>(steps.size()),
            last = count - 1;
  std::vector<int> last_use(static_cast<std::size_t>(inputs + count), -1);
  for (int s = 0; s < count; ++s)
    if (!steps[static_cast<std::size_t>(s)].joined)
      for (const int value : steps[static_cast<std::size_t>(s)].reads)
        last_use[static_cast<std::size_t>(value)] = s;

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
    if (step.joined) continue;
    const bool in_place = s == last && result == Result::written && !store;
    if (!in_place && !step.constant) take(inputs + s);
    const std::vector<int>& values = step.reads;
    for (auto at = values.begin(); at != values.end(); ++at) {
      const int slot = registers[static_cast<std::size_t>(*at)];
      const bool repeated = std::find(values.begin(), at, *at) != at;
      if (last_use[static_cast<std::size_t>(*at)] == s && slot >= 0 && !lasting(*at) && !repeated)
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
    step.row = instruction.row;
    step.operands = instruction.operands;
    step.numbers = instruction.numbers;
    const DType key = step.operands.empty()
                          ? instruction.dtype
                          : dtypes[static_cast<std::size_t>(step.operands.back())];
    step.function = instruction.row->name == "cast"
                        ? cast_tile(key, instruction.dtype)
                        : instruction.row->tiles[static_cast<std::size_t>(tile_type(key))];
    if (!step.function) request.no_kernel(key);
    if (instruction.dtype == f16) step.round = round_to_half;
    if (instruction.dtype == bf16) step.round = round_to_bfloat16;
    step.constant = instruction.row->name == "full" && fused.code.size() > 1;
    step.in_floats = key == f32;
    steps.push_back(step);
    dtypes.push_back(instruction.dtype);
  }
  if (is_half(out_dtype) && result == Result::written) store = store_tile(out_dtype);
  join_chains();
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
    if (p_.steps[s].constant || p_.steps[s].joined) continue;
    const std::size_t value = p_.sources.size() + s;
    step(s, begin, count, p_.registers[value] >= 0 ? slot(value) : out);
  }
  if (p_.store) p_.store(slot(p_.registers.size() - 1), out, count);
}

void TileWorker::step(std::size_t index, std::int64_t begin, std::int64_t count, std::byte* out) {
  const TileProgram::Step& s = p_.steps[index];
  if (!s.chain.empty()) return chain(s, count, reinterpret_cast<float*>(out));
  TileArgs t;
  for (std::size_t k = 0; k < s.operands.size(); ++k)
    t.in[k] = value(static_cast<std::size_t>(s.operands[k]));
  t.out = out;
  t.count = count;
  t.begin = begin;
  t.immediates = &s.numbers;
  t.random = args_.random;
  s.function(t);
  if (s.round) s.round(reinterpret_cast<float*>(out), count);
}

constexpr std::int64_t prefetched = 1024;  // elements ahead: the tile after the next

// Whole blocks of a tile, by links.
void TileWorker::chain(const TileProgram::Step& last, std::int64_t count, float* out) const {
  const std::int64_t whole = count / chain::block * chain::block;
  if (whole < count) chain_rest(last.chain, whole, count - whole, out + whole);
  if (whole == 0) return;
  std::array<const float*, TileProgram::longest_chain*(max_pointwise_arity - 1) + 1> operands;
  for (std::size_t i = 0; i < last.reads.size(); ++i) operands[i] = floats(last.reads[i]);
  // The blocks of several inputs in turn are not what prefetchers of processors expect.
  for (const int input : last.streams) chain::prefetch(floats(input, prefetched), whole);
  chain::run(last.links.data(), operands.data(), whole, out);
}

// The elements from `at` on, fewer than a block: function by function.
void TileWorker::chain_rest(const std::vector<int>& steps, std::int64_t at, std::int64_t count,
                            float* out) const {
  alignas(64) float results[2][chain::block];
  const float* handed = nullptr;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TileProgram::Step& step = p_.steps[static_cast<std::size_t>(steps[i])];
    TileArgs t;
    for (std::size_t k = 0; k < step.operands.size(); ++k)
      t.in[k] = i > 0 && k == step.handed ? handed : floats(step.operands[k], at);
    t.out = i + 1 == steps.size() ? out : results[i % 2];
    t.count = count;
    step.function(t);
    handed = static_cast<const float*>(t.out);
  }
}

}  // namespace ebb
