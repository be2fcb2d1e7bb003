#include "ebb/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/cuda/cuda.h"
#include "ebb/arena.h"
#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "ops/leaf/leaf.h"
#include "plan/request.h"
#include "runtime/lanes.h"
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

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, Bytes size) {
  const bool onto_cuda = to_device.kind == Device::Kind::cuda,
             from_cuda = from_device.kind == Device::Kind::cuda;
  if (onto_cuda && from_cuda && to_device != from_device)
    throw DeviceError(fmt::format("[feed] the tensor is on {}, but the program on {}",
                                  to_string(from_device), to_string(to_device)));
  if (onto_cuda && from_cuda)
    cuda::copy(to_device, to, from, size);
  else if (onto_cuda)
    cuda::write(to_device, to, from, size);
  else if (from_cuda)
    cuda::read(from_device, to, from, size);
  else
    std::memcpy(to, from, static_cast<std::size_t>(size.count));
}

}  // namespace

struct Program::State {
  Plan plan;
  std::vector<Kernel> kernels;  // of the instructions
  Leaves leaves;                // of the plan's leaves
  std::vector<Tensor> inputs;   // the graph's inputs, for their types and names
  std::vector<bool> fed;        // which of them have bytes for the next run
  std::shared_ptr<Arena> arena;
  std::uint64_t bound_to = 0;  // generation of the arena that the addresses are of
  std::vector<std::shared_ptr<Storage>> outputs;
  std::vector<TensorType> output_types;
  std::vector<std::byte*> addresses;  // of every buffer
  std::vector<std::byte*> pointers;   // of every instruction's inputs and outputs, end to end
  std::vector<KernelArgs> args;
  Fault fault;
  std::size_t started = 0;  // instructions of a run that has not come to its end
  RandomState random;
  bool has_run = false;
  bool warm = false;                           // has run on CUDA as bound now
  std::optional<Lanes> lanes;                  // on CUDA
  std::optional<Uploads> uploads;              // on CUDA, if any were expected
  std::unique_ptr<cuda::Recording> recording;  // of the step, from its second such run on
  std::optional<cuda::Clock> clock;            // of timed steps
  std::unique_ptr<cuda::Recording> timed_recording;

  Device device() const { return plan.device; }
  bool on_cuda() const { return plan.device.kind == Device::Kind::cuda; }

  // Variables get their bytes here, and their initial values are computed straight into them.
  void materialise_variables(const Graph& graph) const {
    for (const auto& node : topological_order(graph))
      if (&node->op() == &variable_op()) materialise(*node, random.seed);
  }

  std::byte* address_of(const Buffer& buffer) const {
    const Place& place = buffer.place;
    if (place.leaf) return leaves[place.leaf.index()]->storage()->data();
    if (place.output >= 0) return outputs[static_cast<std::size_t>(place.output)]->data();
    return arena->data() + place.offset.count;
  }

  void make_outputs() {
    outputs.resize(plan.outputs.size());
    for (const Buffer& buffer : plan.buffers)
      if (const int output = buffer.place.output; output >= 0)
        outputs[static_cast<std::size_t>(output)] = Storage::allocate(device(), buffer.size);
  }

  void bind() {
    bound_to = arena->generation();
    addresses.clear(), pointers.clear(), args.clear();
    recording.reset(), timed_recording.reset(), warm = false;
    for (const Buffer& buffer : plan.buffers) addresses.push_back(address_of(buffer));

    std::size_t count = 0;
    for (const Instruction& instruction : plan.instructions)
      count += instruction.inputs.size() + instruction.outputs.size();
    pointers.reserve(count);  // spans below point into it
    for (const Instruction& instruction : plan.instructions) {
      const std::size_t begin = pointers.size();
      for (const std::vector<Operand>* operands : {&instruction.inputs, &instruction.outputs})
        for (const Operand& operand : *operands)
          pointers.push_back(addresses[operand.buffer.index()] +
                             operand.layout.offset * size_of(operand.type.dtype).count);
      KernelArgs a;
      a.inputs = {pointers.data() + begin, instruction.inputs.size()};
      a.outputs = {pointers.data() + begin + instruction.inputs.size(), instruction.outputs.size()};
      if (instruction.workspace) a.workspace = addresses[instruction.workspace.index()];
      a.fault = &fault;
      if (on_cuda()) {
        a.stream = cuda::stream(device(), lane_of(plan, instruction));
        a.control = cuda::control(device());
        a.instruction = static_cast<int>(args.size());
      }
      args.push_back(a);
    }
  }

  void require_input(std::size_t i) const {
    if (i >= inputs.size())
      throw ValueError(
          fmt::format("[feed] the program has {} inputs; there is no input {}", inputs.size(), i));
  }

  // Whether a tensor can be the value of input i.
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

  // How errors name an input.
  std::string input_place(std::size_t i) const {
    return fmt::format("input {} (\"{}\")", i,
                       inputs[i].node()->attributes().as<LeafAttributes>().name);
  }

  // Takes the arena over from whoever ran in it last.
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
    std::fill(fed.begin(), fed.end(), false);  // the arena reuses their bytes
  }

  // On CUDA the first run starts every kernel by itself, so that libraries and code are loaded; the
  // second is recorded, and later ones replay it.
  void execute_on_cuda(const std::function<void()>& meanwhile) {
    if (!lanes) lanes.emplace(plan);
    const auto start_all = [&] { lanes->start(plan, kernels, args); };
    started = plan.instructions.size();
    cuda::write_random(device(), random);
    if (!warm) {
      start_all();
      warm = true;
    } else {
      if (!recording) recording = std::make_unique<cuda::Recording>(device(), start_all);
      recording->replay();
    }
    try {
      if (meanwhile) meanwhile();
    } catch (...) {
      finish_on_cuda();
      started = plan.instructions.size();
      throw;
    }
    finish_on_cuda();
  }

  // One instruction after the other, in one lane. The first run is not recorded, as above.
  std::vector<double> execute_timed_on_cuda() {
    const std::size_t count = started = plan.instructions.size();
    if (!clock) clock.emplace(device(), count + 1);
    const auto start_all = [&] {
      clock->mark(0);
      for (std::size_t i = 0; i < count; ++i) {
        KernelArgs alone = args[i];
        alone.stream = cuda::stream(device());
        kernels[i].run(alone);
        clock->mark(i + 1);
      }
    };
    cuda::write_random(device(), random);
    if (!warm) {
      start_all();
      warm = true;
    } else {
      if (!timed_recording)
        timed_recording = std::make_unique<cuda::Recording>(device(), start_all);
      timed_recording->replay();
    }
    finish_on_cuda();
    return clock->intervals();
  }

  void finish_on_cuda() {
    const cuda::Fault found = cuda::take_fault(device());
    if (found.instruction != 0) {
      fault.position = found.position, fault.value = found.value, fault.limit = found.limit;
      raise(plan.instructions[InstructionId(found.instruction - 1)]);
    }
    ++random.step;
    started = 0;
    has_run = true;
  }

  // `after(i)` is called when instruction i has run.
  template <class After>
  void execute(const After& after) {
    for (std::size_t i = 0; i < plan.instructions.size(); ++i) {
      args[i].random = random;
      started = i + 1;
      kernels[i].run(args[i]);
      if (fault.raised.load(std::memory_order_relaxed)) raise(plan.instructions[InstructionId(i)]);
      after(i);
    }
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

  [[noreturn]] void raise(const Instruction& instruction) {
    fault.raised = false;
    const std::string& path = instruction.path;
    throw ValueError(fmt::format("[{}]{} index {} at position {} is outside [0, {})",
                                 instruction.op->name(),
                                 path.empty() ? "" : fmt::format(" at \"{}\":", path), fault.value,
                                 fault.position, fault.limit));
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
  if (state_->on_cuda()) cuda::require(state_->device());
  if (options.arena && options.arena->device() != state_->device())
    throw DeviceError(fmt::format("[compile] the program is on {}, but its arena on {}",
                                  to_string(state_->device()), to_string(options.arena->device())));
  for (const Instruction& instruction : state_->plan.instructions)
    state_->kernels.push_back(ebb::bind(state_->plan, instruction));
  state_->leaves = leaves_of(state_->plan, graph);
  state_->materialise_variables(graph);
  state_->arena =
      options.arena ? options.arena : std::make_shared<Arena>(state_->device(), options.machine);
  state_->arena->reserve(state_->plan.arena());
  state_->make_outputs();
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
  if (!state_->on_cuda() || value.device().kind == Device::Kind::cuda) return;
  if (!state_->uploads) state_->uploads.emplace(state_->device(), state_->inputs.size());
  state_->uploads->keep(index, value);
}

void Program::feed(int i, double value) {
  state_->feed(static_cast<std::size_t>(i), {{}, f64}, &value, device::cpu);
}

void Program::run(const std::function<void()>& meanwhile) {
  state_->require_fed();
  if (state_->on_cuda()) return state_->execute_on_cuda(meanwhile);
  state_->execute([](std::size_t) {});
  if (!meanwhile) return;
  state_->started = state_->plan.instructions.size();
  meanwhile();
  state_->started = 0;
}

bool Program::intact() const { return state_->intact(); }

std::vector<double> Program::timed_run() {
  using Clock = std::chrono::steady_clock;
  state_->require_fed();
  if (state_->on_cuda()) return state_->execute_timed_on_cuda();
  std::vector<double> times(state_->plan.instructions.size());
  auto last = Clock::now();
  state_->execute([&](std::size_t i) {
    const auto now = Clock::now();
    times[i] = std::chrono::duration<double, std::milli>(now - std::exchange(last, now)).count();
  });
  return times;
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
  if (!state_->on_cuda()) return Tensor::from_bytes({storage.data(), size}, type);
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
