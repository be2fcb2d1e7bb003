#include "ebb/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/backend.h"
#include "core/cuda/rank_link.h"
#include "core/tier_block.h"
#include "ebb/arena.h"
#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "ops/collective/collective.h"
#include "ops/leaf/leaf.h"
#include "ops/transfer/transfer.h"
#include "plan/request.h"
#include "runtime/place_variables.h"
#include "runtime/runner.h"
#include "runtime/uploads.h"

namespace ebb {
namespace {

void materialise(Node& node, std::uint64_t seed) {
  if (node.storage()) return;
  if (!node.initial())
    throw Error(fmt::format("variable \"{}\" has neither a value nor an initial one", node.path()));
  node.set_storage(eval(node.initial(), seed).node()->storage());
  node.set_initial({});
}

}  // namespace

struct Program::State {
  Plan plan;
  std::vector<Kernel> kernels;  // by instruction
  Leaves leaves;                // nodes of the plan's leaves
  std::vector<Tensor> inputs;   // the graph's inputs, for their types and names
  std::vector<bool> fed;        // which inputs have been fed for the next run
  std::shared_ptr<Arena> arena;
  std::uint64_t bound_to = 0;  // the arena's generation that `addresses` refer to
  std::vector<std::shared_ptr<Storage>> outputs;
  std::vector<TensorType> output_types;
  std::vector<std::byte*> addresses;  // by buffer
  std::vector<std::byte*> pointers;   // inputs and outputs of all instructions, one after another
  std::vector<KernelArgs> args;
  Fault fault;
  std::size_t started = 0;  // instructions started in a run that has not ended
  RandomState random;
  bool has_run = false;
  std::unique_ptr<Runner> runner;
  std::optional<Uploads> uploads;                  // set once `expect` has been called
  std::vector<std::shared_ptr<TierBlock>> blocks;  // by space; null for the arena
  std::vector<FileTransfer> files;                 // by instruction
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<cuda::RankLink> link;  // between the ranks' GPUs; null: no collective needs it

  Device device() const { return plan.device; }
  BoundStep bound_step() { return {plan, kernels, args, files, fault, started}; }

  // Computes the initial values of all variables that have no storage yet.
  void materialise_variables(const Graph& graph, const std::filesystem::path& folder) const {
    place_variables(plan, leaves, random.seed, folder);
    for (const auto& node : topological_order(graph))
      if (&node->op() == &variable_op()) materialise(*node, random.seed);
  }

  void make_blocks(const std::filesystem::path& folder) {
    for (const Space& space : plan.spaces)
      blocks.push_back(space.tier == Tier::device
                           ? nullptr
                           : TierBlock::allocate(space.tier, device(), space.size, folder));
  }

  // The place of a buffer that is outside the device.
  TierPart part_of(const Buffer& buffer) const {
    const Place& place = buffer.place;
    if (place.leaf) return leaves[place.leaf.index()]->storage()->part();
    return {blocks[place.space.index()].get(), place.offset};
  }

  // The blocks of variables and of the step, each once.
  std::set<TierBlock*> all_blocks() const {
    std::set<TierBlock*> all;
    for (const auto& leaf : leaves)
      if (leaf->storage()->part().block) all.insert(leaf->storage()->part().block);
    for (const auto& block : blocks)
      if (block) all.insert(block.get());
    return all;
  }

  FileTransfer file_transfer(const Instruction& instruction) const {
    if (!is_transfer(*instruction.op)) return {};
    const bool fetch = instruction.op == &fetch_op();
    const Operand& here = fetch ? instruction.outputs[0] : instruction.inputs[0];
    const Operand& there = fetch ? instruction.inputs[0] : instruction.outputs[0];
    const TierPart part = part_of(plan.buffers[there.buffer]);
    if (!part.block || !part.block->file()) return {};
    const Bytes size = round_up(here.type.bytes(), file_alignment);
    return {part.block->file(),
            part.offset,
            {addresses[here.buffer.index()], static_cast<std::size_t>(size.count)},
            fetch,
            instruction.waits};
  }

  // Collectives are bound to this rank; everything else is the same on all.
  Kernel bound(const Instruction& instruction, TuningUse& tuning) const {
    if (!is_collective(*instruction.op)) return kernel_of(plan, instruction, Purpose::run, tuning);
    std::vector<Arg> in, out;
    for (const Operand& operand : instruction.inputs) in.push_back(operand.arg());
    for (const Operand& operand : instruction.outputs) out.push_back(operand.arg());
    const KernelRequest request{
        *instruction.op, in, out, {device(), plan.tf32, Purpose::run, &tuning}};
    const auto& attributes = instruction.attributes.as<CollectiveAttributes>();
    return device().kind == Device::Kind::cpu
               ? bind_collective(request, attributes, communicator.get(), instruction.path)
               : bind_collective_on_gpu(request, attributes, link);
  }

  // Connects the GPUs of the ranks if a collective of the plan needs them.
  void connect_ranks() {
    if (device().kind == Device::Kind::cpu || !communicator) return;
    const bool needed =
        std::any_of(plan.instructions.begin(), plan.instructions.end(), [](const Instruction& i) {
          return is_collective(*i.op) && i.attributes.as<CollectiveAttributes>().ranks > 1;
        });
    if (needed) link = cuda::rank_link(communicator, device());
  }

  void bind_kernels() {
    TuningUse tuning(plan.tuning);
    for (const Instruction& instruction : plan.instructions) {
      kernels.push_back(bound(instruction, tuning));
      const Bytes planned =
          instruction.workspace ? plan.buffers[instruction.workspace].size : Bytes{};
      if (kernels.back().workspace > planned)
        throw ValueError(
            fmt::format("[compile] {} at \"{}\" needs a workspace of {} bytes on this machine, but "
                        "the plan has "
                        "{}: it was made for another machine, or without its tuning",
                        instruction.op->name(), instruction.path, kernels.back().workspace.count,
                        planned.count));
    }
  }

  std::byte* address_of(const Buffer& buffer) const {
    const Place& place = buffer.place;
    if (place.leaf) return leaves[place.leaf.index()]->storage()->data();
    if (place.output >= 0) return outputs[static_cast<std::size_t>(place.output)]->data();
    if (const auto& block = blocks[place.space.index()])
      return block->data() ? block->data() + place.offset.count : nullptr;
    return arena->data() + place.offset.count;
  }

  std::byte* address_of(const Operand& operand) const {
    std::byte* begin = addresses[operand.buffer.index()];
    return begin ? begin + operand.layout.offset * size_of(operand.type.dtype).count : nullptr;
  }

  void make_outputs() {
    outputs.resize(plan.outputs.size());
    for (const Buffer& buffer : plan.buffers)
      if (const int output = buffer.place.output; output >= 0)
        outputs[static_cast<std::size_t>(output)] = Storage::allocate(device(), buffer.size);
  }

  void bind() {
    bound_to = arena->generation();
    addresses.clear(), pointers.clear(), args.clear(), files.clear();
    runner->forget();
    for (const Buffer& buffer : plan.buffers) addresses.push_back(address_of(buffer));

    std::size_t count = 0;
    for (const Instruction& instruction : plan.instructions)
      count += instruction.inputs.size() + instruction.outputs.size();
    pointers.reserve(count);  // no reallocation: the spans below point into it
    for (const InstructionId i : plan.instructions.ids()) {
      const Instruction& instruction = plan.instructions[i];
      const std::size_t begin = pointers.size();
      for (const std::vector<Operand>* operands : {&instruction.inputs, &instruction.outputs})
        for (const Operand& operand : *operands) pointers.push_back(address_of(operand));
      KernelArgs a;
      a.inputs = {pointers.data() + begin, instruction.inputs.size()};
      a.outputs = {pointers.data() + begin + instruction.inputs.size(), instruction.outputs.size()};
      if (instruction.workspace) a.workspace = addresses[instruction.workspace.index()];
      a.fault = &fault;
      runner->complete(a, plan, i);
      args.push_back(a);
      files.push_back(file_transfer(instruction));
    }
  }

  void require_input(std::size_t i) const {
    if (i >= inputs.size())
      throw ValueError(
          fmt::format("[feed] the program has {} inputs; there is no input {}", inputs.size(), i));
  }

  // Throws unless the tensor can be the value of input i.
  void require_value(std::size_t i, const Tensor& value) const {
    require_input(i);
    if (!value)
      throw ValueError(fmt::format("[feed] {} was given an empty tensor", input_place(i)));
    if (!value.node()->storage())
      throw ValueError(fmt::format("[feed] {} has no value yet: eval() it first", input_place(i)));
    if (value.type() != inputs[i].type())
      throw ShapeError(fmt::format("[feed] {} must be {}, but is {}", input_place(i),
                                   to_string(inputs[i].type()), to_string(value.type())));
  }

  // The name of an input in error messages.
  std::string input_place(std::size_t i) const {
    return fmt::format("input {} (\"{}\")", i,
                       inputs[i].node()->attributes().as<LeafAttributes>().name);
  }

  // Claims the arena from the program that used it last, which invalidates all inputs fed before.
  void take_arena() {
    if (arena->generation() != bound_to) bind();
    if (arena->holder() == this) return;
    std::fill(fed.begin(), fed.end(), false);
    arena->claim(this);
  }

  void feed(std::size_t i, const TensorType& type, const void* data, Device from) {
    require_input(i);
    take_arena();
    if (type != inputs[i].type())
      throw ShapeError(fmt::format("[feed] {} must be {}, but is {}", input_place(i),
                                   to_string(inputs[i].type()), to_string(type)));
    copy_bytes(addresses[plan.inputs[i].buffer.index()], device(), data, from, type.bytes());
    fed[i] = true;
  }

  void require_fed() {
    take_arena();
    for (std::size_t i = 0; i < fed.size(); ++i)
      if (!fed[i])
        throw ValueError(fmt::format("[run] {} was not fed since the last run", input_place(i)));
    std::fill(fed.begin(), fed.end(), false);  // the run reuses their memory
  }

  // Calls `meanwhile` between the start and the end of the run.
  void run(const std::function<void()>& meanwhile) {
    runner->start(bound_step(), random);
    try {
      if (meanwhile) meanwhile();
    } catch (...) {
      finish();
      started = plan.instructions.size();
      throw;
    }
    finish();
  }

  std::vector<double> run_timed() {
    std::vector<double> times = runner->run_timed(bound_step(), random);
    count_step();
    return times;
  }

  void finish() {
    runner->finish(bound_step());
    count_step();
  }

  void count_step() {
    ++random.step;
    started = 0;
    has_run = true;
  }

  bool intact() const {
    return std::none_of(
        plan.instructions.begin(), plan.instructions.begin() + static_cast<std::ptrdiff_t>(started),
        [&](const Instruction& instruction) {
          return std::any_of(instruction.outputs.begin(), instruction.outputs.end(),
                             [&](const Operand& out) {
                               return static_cast<bool>(plan.buffers[out.buffer].place.leaf);
                             });
        });
  }
};

Program::Program(const Graph& graph, const CompileOptions& options)
    : Program(graph, plan_program(graph, options), options) {}

Program::Program(const Graph& graph, Plan plan, const CompileOptions& options)
    : state_(std::make_unique<State>()) {
  state_->random.seed = options.seed;
  state_->inputs = graph.inputs;
  state_->fed.resize(graph.inputs.size());
  for (const Tensor& output : graph.outputs) state_->output_types.push_back(output.type());
  state_->plan = std::move(plan);
  backend_of(state_->device()).require(state_->device());
  if (options.arena && options.arena->device() != state_->device())
    throw DeviceError(fmt::format("[compile] the program is on {}, but its arena on {}",
                                  to_string(state_->device()), to_string(options.arena->device())));
  state_->communicator = options.communicator;
  state_->connect_ranks();
  state_->bind_kernels();
  state_->runner = make_runner(state_->device(), state_->link);
  state_->leaves = leaves_of(state_->plan, graph);
  state_->materialise_variables(graph, options.offload_folder);
  state_->arena =
      options.arena ? options.arena : std::make_shared<Arena>(state_->device(), options.machine);
  state_->arena->reserve(state_->plan.arena());
  state_->make_outputs();
  state_->make_blocks(options.offload_folder);
  state_->bind();
}

Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

void Program::feed(int i, const Tensor& value) {
  const std::size_t index = static_cast<std::size_t>(i);
  state_->require_value(index, value);
  const std::byte* uploaded = state_->uploads ? state_->uploads->find(index, value) : nullptr;
  state_->feed(index, value.type(), uploaded ? uploaded : value.node()->storage()->data(),
               value.device());
}

void Program::expect(int i, const Tensor& value) {
  const std::size_t index = static_cast<std::size_t>(i);
  state_->require_value(index, value);
  if (!backend_of(state_->device()).runs_beside_host() || value.device() != device::cpu) return;
  if (!state_->uploads) state_->uploads.emplace(state_->device(), state_->inputs.size());
  state_->uploads->keep(index, value);
}

void Program::feed(int i, double value) {
  state_->feed(static_cast<std::size_t>(i), {{}, f64}, &value, device::cpu);
}

void Program::run(const std::function<void()>& meanwhile) {
  state_->require_fed();
  state_->run(meanwhile);
}

bool Program::intact() const { return state_->intact(); }

std::vector<double> Program::timed_run() {
  state_->require_fed();
  return state_->run_timed();
}

void Program::run(std::span<const Tensor> inputs) {
  if (inputs.size() != state_->inputs.size())
    throw ValueError(fmt::format("[run] the program has {} inputs, but {} came",
                                 state_->inputs.size(), inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) feed(static_cast<int>(i), inputs[i]);
  run();
}

double Program::scalar(int i) const {
  if (state_->output_types.at(static_cast<std::size_t>(i)) != TensorType{{}, f64})
    throw DTypeError(fmt::format("[scalar] output {} is {}, not one float64", i,
                                 to_string(state_->output_types[static_cast<std::size_t>(i)])));
  double value = 0.0;
  state_->outputs[static_cast<std::size_t>(i)]->read(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

namespace {

Tensor constant_with(std::shared_ptr<Storage> storage, const TensorType& type) {
  const Tensor result = create(constant_op(), storage->device(), LeafAttributes{type, {}});
  result.node()->set_storage(std::move(storage));
  result.node()->set_category(Category::inputs);
  return result;
}

}  // namespace

Tensor Program::output(int i) const {
  if (i < 0 || i >= static_cast<int>(state_->outputs.size()))
    throw ValueError(fmt::format("[output] the program has {} outputs, but number {} was asked for",
                                 state_->outputs.size(), i));
  if (!state_->has_run) throw ValueError("[output] the program has not run yet");
  const Storage& storage = *state_->outputs[static_cast<std::size_t>(i)];
  const TensorType& type = state_->output_types[static_cast<std::size_t>(i)];
  const std::size_t size = static_cast<std::size_t>(type.bytes().count);
  std::vector<std::byte> bytes(size);
  storage.read(bytes);
  return Tensor::from_bytes(bytes, type);
}

const Plan& Program::plan() const { return state_->plan; }
const Leaves& Program::leaves() const { return state_->leaves; }

Bytes Program::resident() const {
  Bytes total = state_->arena->resident();
  for (const auto& output : state_->outputs) total += output->resident();
  for (const auto& leaf : state_->leaves) total += leaf->storage()->resident();
  return total;
}

ByTier<Bytes> Program::held() const {
  ByTier<Bytes> held;
  for (const TierBlock* block : state_->all_blocks()) held[block->tier()] += block->held();
  return held;
}

Program::FileTraffic Program::file_traffic() const {
  FileTraffic traffic;
  for (const TierBlock* block : state_->all_blocks())
    if (OffloadFile* file = block->file()) {
      const OffloadFile::Moved moved = file->moved();
      traffic.read += moved.read, traffic.written += moved.written;
      traffic.read_seconds += moved.read_seconds, traffic.write_seconds += moved.write_seconds;
    }
  return traffic;
}

std::uint64_t Program::step() const { return state_->random.step; }
void Program::set_step(std::uint64_t step) { state_->random.step = step; }

std::vector<Tensor> eval(std::span<const Tensor> tensors, std::uint64_t seed) {
  CompileOptions options;
  options.seed = seed;
  Program program({.inputs = {}, .outputs = {tensors.begin(), tensors.end()}, .updates = {}},
                  options);
  program.run();
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    results.push_back(constant_with(program.state_->outputs[i], tensors[i].type()));
  return results;
}

void Variable::materialise(std::uint64_t seed) const { ebb::materialise(*node(), seed); }

Tensor eval(const Tensor& tensor, std::uint64_t seed) {
  return eval(std::span(&tensor, 1), seed).front();
}

}  // namespace ebb
